"""An environment's spaces as arrays: observations, actions, features and their normaliser.

Pure: no socket, clock, file or log.
"""
