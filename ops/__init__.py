"""The operator's side: commands, the fleet that they start, screens, the serial baseline and benchmarks.

No other package imports from here.
"""
