"""The scores of the recipes in `ops/runs`: their records, the page and the figure made from them.

Not here: how a run is started (ops/bench/runs.py) and how results are kept (ops/bench/results.py).
"""
