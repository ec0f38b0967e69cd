"""The files that a run leaves: checkpoints' names, configuration, the best policy, exports.

No Redis, no training.
"""
