"""The learner: training (`training.py`), its algorithm (`ppo/`), and the loop that feeds it from Redis.

Never imports `workers`. `training.py` and the modules that it imports do not reach Redis.
"""
