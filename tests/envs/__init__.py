"""Small environments for tests, registered on import: `tests.envs:Terminating-v0`.

Without gymnasium's own checker and order wrapper, which would meet some of the faults first.
"""

import gymnasium

_ENTRY_POINTS = {
    "Terminating-v0": "episodes:Terminating",
    "Truncating-v0": "episodes:Truncating",
    "BothFlags-v0": "episodes:BothFlags",
    "ShiftedDiscrete-v0": "actions:ShiftedDiscrete",
    "BoundedRecorder-v0": "actions:BoundedRecorder",
    "OpenBounds-v0": "actions:OpenBounds",
    "ManyDiscrete-v0": "actions:ManyDiscrete",
    "WholeActions-v0": "actions:WholeActions",
    "Int32-v0": "observations:Int32",
    "Float64-v0": "observations:Float64",
    "SecretlyFloat64-v0": "observations:SecretlyFloat64",
    "Image-v0": "observations:Image",
    "Category-v0": "observations:Category",
    "OutsideOnce-v0": "observations:OutsideOnce",
    "Categories-v0": "observations:Categories",
    "Flags-v0": "observations:Flags",
    "Grid-v0": "observations:Grid",
    "Grey-v0": "observations:Grey",
    "Screen-v0": "observations:Screen",
    "Matrix-v0": "observations:Matrix",
    "Number-v0": "observations:Number",
    "Memory-v0": "observations:Memory",
    "Named-v0": "observations:Named",
    "Spoken-v0": "observations:Spoken",
    "Pair-v0": "observations:Pair",
    "Parts-v0": "observations:Parts",
    "Buttons-v0": "observations:Buttons",
    "Masked-v0": "observations:Masked",
    "WronglyMasked-v0": "observations:WronglyMasked",
    "Narrow-v0": "observations:Narrow",
    "RaggedlyMasked-v0": "observations:RaggedlyMasked",
    "MaskedBox-v0": "observations:MaskedBox",
    "Everything-v0": "observations:Everything",
    "MaskedPair-v0": "observations:MaskedPair",
    "ReusingNamed-v0": "observations:ReusingNamed",
    "Reusing-v0": "observations:Reusing",
    "Recall-v0": "observations:Recall",
    "NanObservation-v0": "faults:NanObservation",
    "InfiniteReward-v0": "faults:InfiniteReward",
    "RaisesInStep-v0": "faults:RaisesInStep",
    "RaisesInReset-v0": "faults:RaisesInReset",
    "LeavesInStep-v0": "faults:LeavesInStep",
    "Dies-v0": "faults:Dies",
    "OddNumbers-v0": "faults:OddNumbers",
    "RewardsTwice-v0": "faults:RewardsTwice",
    "OddInfos-v0": "faults:OddInfos",
    "OtherShape-v0": "faults:OtherShape",
    "OldApi-v0": "faults:OldApi",
    "OldestApi-v0": "faults:OldestApi",
    "Busy-v0": "faults:Busy",
    "Hangs-v0": "faults:Hangs",
    "Slow-v0": "faults:Slow",
}

for _env_id, _entry_point in _ENTRY_POINTS.items():
    gymnasium.register(
        _env_id,
        entry_point=f"{__name__}.{_entry_point}",
        disable_env_checker=True,
        order_enforce=False,
    )
