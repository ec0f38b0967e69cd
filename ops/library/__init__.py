"""The code behind `dppo_redis.train` and `dppo_redis.load`: background runs and policies for Python programs.

This code does not print, handle signals or start threads, because the process belongs to the caller.
"""
