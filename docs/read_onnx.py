"""Act greedily with the ONNX graph of an export by onnxruntime, without dppo-redis.

    session, graph = load("policy")
    action, memory = act(session, graph, [observation])
    action, memory = act(session, graph, [observation], memory)

`observation` is what the environment returns: an array, a number, or dicts and tuples of these. With frame
stacking pass the last observations, the oldest first. `memory` is None at the start of an episode. An action
of several parts is a dict by the graph's names. Where the policy knows an action mask, an observation is
{"observation": ..., "action_mask": flags}.
"""

import json
from pathlib import Path

import numpy as np
import onnxruntime


def load(directory):
    graph = json.loads(Path(directory, "policy.json").read_text())["onnx"]
    return onnxruntime.InferenceSession(Path(directory, graph["file"])), graph


def act(session, graph, observations, memory=None):
    feed = {}
    for name, port in graph["inputs"].items():
        parts = [memory] if memory is not None else np.zeros(port["shape"][1:], port["dtype"])
        if port["field"] is not None:
            parts = observations[-port["frames"] :]
            for key in port["path"]:
                parts = [part[key] for part in parts]
        feed[name] = np.asarray(parts, port["dtype"]).reshape(1, *port["shape"][1:])
    found = {name: x[0] for name, x in zip(graph["outputs"], session.run(None, feed), strict=True)}
    action = {name: x for name, x in found.items() if name.startswith("action")}
    return action.get("action", action), found.get("memory_after")
