"""Gradient steps by hand for two plain networks over vectors, on the CPU: layout, formulas, Adam.

No autograd here: `learner/ppo/steps.py` has it, for every other network. The formulas are pure numpy.
"""
