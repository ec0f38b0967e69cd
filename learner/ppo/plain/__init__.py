"""Gradient steps in numpy, without autograd, for two plain networks over vectors on the CPU.

No autograd here: `learner/ppo/steps.py` has it, for every other network. The formulas are pure numpy.
"""
