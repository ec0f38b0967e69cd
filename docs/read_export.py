"""Act greedily with an export of dppo-redis by numpy and safetensors, without dppo-redis.

    layout, arrays = load("policy")
    action = act(layout, arrays, [observation])

`observation` is what the environment returns: an array, a number, or dicts and tuples of these. With frame
stacking pass the last `layout["frame_stack"]` observations, the oldest first. An action of several parts is
a dict by the names in `layout["output"]`. It reads networks of the kind "mlp". Where the policy knows an
action mask, an observation is {"observation": ..., "action_mask": flags}.
"""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

ACTIVATIONS = {"tanh": np.tanh, "relu": lambda x: np.maximum(x, 0), None: lambda x: x}


def load(directory):
    layout = json.loads(Path(directory, "policy.json").read_text())["layout"]
    if layout["network"]["kind"] != "mlp":
        raise ValueError(f"a network of the kind {layout['network']['kind']}: use the ONNX graph")
    return layout, load_file(Path(directory, "policy.safetensors"))


def find(part, observation):
    for key in part["path"]:
        observation = observation[key]
    return np.ravel(observation)


def encode(part, observation, arrays):
    x = find(part, observation)
    if part["encoding"] == "one-hot":
        places = zip(x, part["n"], part["start"], strict=True)
        x = np.concatenate([np.arange(n) == number - start for number, n, start in places])
    x = x.astype(np.float32)
    if scale := part["normaliser"]:
        own = slice(scale["offset"], scale["offset"] + part["length"])
        x = (x - arrays[scale["mean"]][own]) * arrays[scale["inverse_std"]][own]
        x = np.clip(x, -scale["clip"], scale["clip"])
    return x


def act(layout, arrays, observations):
    x = np.concatenate([encode(part, one, arrays) for one in observations for part in layout["input"]])
    for layer in layout["network"]["layers"]:
        x = ACTIVATIONS[layer["activation"]](arrays[layer["weight"]] @ x + arrays[layer["bias"]])
    if mask := layout["mask"]:
        x[: mask["length"]][find(mask, observations[-1]) == 0] = mask["forbidden"]
    action = {}
    for head in layout["output"]:
        y = x[head["offset"] : head["offset"] + head["length"]]
        if head["kind"] == "categorical":
            groups = zip(np.split(y, np.cumsum(head["n"])[:-1]), head["start"], strict=True)
            y = [group.argmax() + start for group, start in groups]
        else:  # null, no bound, becomes nan here, which fmax and fmin pass over
            y = np.fmin(np.fmax(y, np.array(head["low"], float)), np.array(head["high"], float))
        action[head["name"]] = np.reshape(y, head["shape"]).astype(head["dtype"])
    return action.get("action", action)
