"""supervisord, the server process and the run directory: what `train` starts and stops.

No screens, no training.
"""
