"""The algorithm, pure: advantages, corrections, loss, update.

No socket, clock, file or log; no Redis.
"""
