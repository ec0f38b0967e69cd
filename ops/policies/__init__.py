"""What the commands do with a learnt policy: load it, film it, write it as a graph.

No training, no Redis.
"""
