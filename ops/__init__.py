"""What an operator runs: commands, the fleet they start, screens, the serial baseline, benchmarks.

Nothing else imports from here.
"""
