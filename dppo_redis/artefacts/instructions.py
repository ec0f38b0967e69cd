"""Instructions for acting with a policy, for readers of an export who lack this package. Pure."""

from dppo_redis.protocol.config import NetworkConfig
from dppo_redis.protocol.spec import Spec
from dppo_redis.protocol.weights import NORMALISER_INVERSE_STD, NORMALISER_MEAN
from dppo_redis.spaces.actions import ActionSpec
from dppo_redis.spaces.features import in_order
from dppo_redis.spaces.normaliser import CLIP
from dppo_redis.spaces.observations import Field

_ORDER = (
    "layout says all of this as data. The network reads the parts of an observation in the order of "
    "layout.input; spec.observation lists them in another order."
)


def how_to_act(spec: Spec) -> list[str]:
    """The steps from an observation of the environment to an action, in one or two sentences each."""
    return [_ORDER, *_features(spec), *_images(spec), *_network(spec.network, spec), *_choice(spec)]


def _features(spec: Spec) -> list[str]:
    """The treatment of all parts of an observation except images."""
    fields = in_order(spec.observation)
    if not fields:
        return []
    parts = "; ".join(f"{field.name} ({_reading(field)})" for field in fields)
    steps = [f"Put side by side, as float32: {parts}. These are {spec.observation.size} numbers."]
    if spec.normalise_observations and spec.observation.moments:
        steps.append(
            f"Replace the first {spec.observation.moments} of them, x, by (x - {NORMALISER_MEAN}) * "
            f"{NORMALISER_INVERSE_STD}, held within -{CLIP:g} and {CLIP:g}."
        )
    if spec.frame_stack > 1:
        steps.append(
            f"Put the numbers of the last {spec.frame_stack} observations side by side, the oldest first; "
            "before an episode's first observation there are copies of it."
        )
    return steps


def _reading(field: Field) -> str:
    if field.kind == "categories":
        parts = zip(field.sizes, field.starts, strict=True)
        return "one-hot: " + ", ".join(f"{n} places, the first for {start}" for n, start in parts)
    return f"flattened in C order, {field.features} numbers"


def _images(spec: Spec) -> list[str]:
    steps = []
    for index, field in enumerate(spec.observation.images):
        channels, height, width = field.image_shape
        order = "as it is" if field.channels_first else "with its last axis moved to the front"
        stacked = ""
        if spec.frame_stack > 1:
            stacked = f"; the last {spec.frame_stack} of them are further channels, the oldest first"
        steps.append(
            f"Image {index} is {field.name}, {order}: [{channels}, {height}, {width}]{stacked}; "
            f"divided by {field.high:g}."
        )
    return steps


def _network(network: NetworkConfig, spec: Spec) -> list[str]:
    """The layers, under the names of their arrays; each is x @ weight.T + bias, as in torch.nn.Linear."""
    if network.custom is not None:
        return [
            f"The network is {network.custom}, built with (sizes, {spec.action.outputs}): "
            "its arrays are custom.*, its policy(inputs) gives the outputs."
        ]
    trunk = bool(spec.observation.images) or network.memory != "none"
    hidden = f"layers of {list(network.hidden)} with {network.activation}"
    if not trunk:
        return [
            f"policy.* are {hidden}, then one of {spec.action.outputs} without; x @ weight.T + bias each."
        ]
    steps = []
    if spec.observation.images:
        steps.append(
            "trunk.encoders.N.layers.* turn image N into features: torch's Conv2d and Linear, each with "
            "ReLU; strides 4, 2, 1 where there are three convolutions, else 1, 2 with a padding of 1."
        )
    if spec.observation.size:
        steps.append(f"trunk.vector.* are {hidden} over the numbers; their features stand after the images'.")
    if network.memory != "none":
        cell = "LSTM (its state is output, then cell)" if network.memory == "lstm" else "GRU"
        steps.append(
            f"memory.cell.* are torch's {cell} of width {network.memory_size} over these features; "
            "its state is 0 at the start of an episode."
        )
    return [*steps, f"policy.0 is the last layer: {spec.action.outputs} outputs, x @ weight.T + bias."]


def _choice(spec: Spec) -> list[str]:
    """From the outputs to an action."""
    action = spec.action
    steps = [_outputs(action)]
    if spec.observation.masked:
        steps.append("A logit whose flag in the action mask is 0 becomes -1e8.")
    if action.choices:
        steps.append(
            "Each category takes the choice with the highest logit (greedy), or one drawn with probabilities "
            "softmax(logits); it is numbered from its start."
        )
    if action.dimensions:
        steps.append(
            "Each real number is its mean (greedy), or drawn from the normal distribution with this mean and "
            "the standard deviation exp(log_std); then held within its bounds, low and high."
        )
    steps.append("spec.action says how these parts make up the environment's action, in C order.")
    return steps


def _outputs(action: ActionSpec) -> str:
    logits = f"{list(action.categories)} logits, one group for each category" if action.choices else ""
    means = f"{action.dimensions} means" if action.dimensions else ""
    return f"The outputs are {', then '.join(part for part in (logits, means) if part)}."
