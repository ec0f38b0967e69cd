"""A process of ours: shutdown, logs, arguments, files, plugins, its event log, and the user's code in it.

Knows nothing of PPO, environments or Redis; imports `errors` alone.
"""
