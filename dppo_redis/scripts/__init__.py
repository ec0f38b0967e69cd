"""The learner's atomic rules, run inside Redis."""
