"""What a run leaves behind: its files, the best policy, exports.

No Redis, no training.
"""
