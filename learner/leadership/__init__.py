"""The leading learner of a run: its lease, publications and ledger, and the keeper thread that renews them.

No training and no reading of rollouts: the loop decides what is published and which outcomes are recorded.
"""
