"""The actor, which samples rollouts, and the evaluator, which plays greedy episodes.

These modules compute no gradients, never import `learner`, and import torch only if a network needs it.
"""
