"""The actor, which samples rollouts, and the evaluator, which plays greedy episodes.

No gradients. Never imports `learner`; imports torch only where a network needs it.
"""
