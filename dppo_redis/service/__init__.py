"""A process of ours: shutdown, logs, arguments, files, plugins, its event log.

Knows nothing of PPO, environments or Redis; imports `errors` alone.
"""
