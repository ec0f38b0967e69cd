"""How a run scales with its actors: ten to a thousand on one Redis, with a real learner intake.

Not here: what a rollout costs on its way (`ops/bench/transport.py`), and what a publication of weights costs.
"""
