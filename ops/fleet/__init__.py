"""The fleet that `train` starts and stops: supervisord, the embedded server and the run directory.

This package draws no screens and does not train.
"""
