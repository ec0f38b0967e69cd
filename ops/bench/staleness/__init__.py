"""The study of what the age of the data costs: its trials, and the report made from their outcomes.

Not here: how a run is started (ops/bench/runs.py) and how results are kept (ops/bench/results.py).
"""
