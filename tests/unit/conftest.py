"""Hypothesis draws the same examples each time, a slow machine is no failure, torch takes one thread."""

import torch
from hypothesis import settings

settings.register_profile("unit", deadline=None, derandomize=True, database=None)
settings.load_profile("unit")
torch.set_num_threads(1)
