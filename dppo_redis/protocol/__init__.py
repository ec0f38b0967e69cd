"""What actor and learner agree on: configuration, spec, rollouts, weights, bytes, pacing.

Pure values and rules: no socket, clock, file or log.
"""
