"""The agreement of actor and learner: configuration, spec, rollouts, weights, bytes, pacing.

Pure values and rules: no socket, clock, file or log.
"""
