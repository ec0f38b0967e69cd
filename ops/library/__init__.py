"""What `dppo_redis.train` and `dppo_redis.load` do: a run in the background of a Python program, a policy.

Nothing here prints, takes over a signal or starts a thread: the process belongs to the caller.
"""
