"""Other PPO implementations on the same task, each in a Python environment of its own.

A peer is a requirements file with exact versions and a program in `programs`. Not here: the product's own
runs (`ops/bench/runs.py`).
"""
