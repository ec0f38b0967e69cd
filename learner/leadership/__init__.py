"""The right to write a run's keys: who leads, what a leader publishes and counts, the thread that keeps it.

No training and no reading of rollouts: the loop says what is published and which outcomes are recorded.
"""
