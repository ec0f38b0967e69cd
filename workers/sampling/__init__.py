"""Rollouts from the steps of environments, and what the actor's loop shares with its collectors. No Redis.

`workers/collect.py` samples with environments that step together. `free_collector.py` samples with separate
ones: each goes on when it is ready.
"""
