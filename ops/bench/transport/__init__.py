"""`dppo-redis bench transport`: rollouts per second from actors to the learner, beside a bare loop.

Not here: environments and training.
"""
