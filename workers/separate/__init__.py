"""Environments that step separately, each in a process or thread of its own, and the clock of their calls.

Not here: policies, rollouts, Redis.
"""
