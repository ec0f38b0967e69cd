"""Sampling without lock step: each environment goes on when it is ready, in a process or thread of its own.

The collectors, what they share with `workers/collect.py`, and the environments. No Redis, no learner.
"""
