"""What an actor does with a rollout: it records steps, and delivers the rollout to Redis.

Knows no rule of the learner. When to sample is `workers/sampling_rule.py`'s; the order of all is the loop's.
"""
