"""The only user of `gymnasium.make`: environments are made, inspected and masked here.

No rollouts, no networks, no Redis.
"""
