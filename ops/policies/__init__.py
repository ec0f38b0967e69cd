"""Loads a trained policy, films it, and writes it as a graph, for the commands.

No training, no Redis.
"""
