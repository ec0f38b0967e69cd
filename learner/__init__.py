"""The learner: a training (`training.py`), its algorithm (`ppo/`), the loop that feeds it from Redis.

Never imports `workers`. `training.py` and what it stands on do not reach Redis.
"""
