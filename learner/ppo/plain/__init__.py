"""Gradient steps in numpy, without autograd, for two plain networks over vectors on the CPU.

`learner/ppo/steps.py` makes the steps of all other networks, with autograd. The formulas here are pure numpy.
"""
