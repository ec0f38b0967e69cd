"""Sampling without lock step, and what the actor's loop shares with it. No Redis, no learner.

Each environment goes on when it is ready, in a process or a thread of its own (`free_collector.py`).
"""
