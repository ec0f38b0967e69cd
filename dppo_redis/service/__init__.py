"""The base of each of our processes: shutdown, logs, arguments, files, plugins, event log, the user's code.

These modules know nothing of PPO, environments or Redis. Of this package they import `errors` alone.
"""
