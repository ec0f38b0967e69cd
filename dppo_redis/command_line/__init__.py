"""What people write: the options that a command declares, how values are written, help, foreign names.

Must not: parse a command line (that is `service/arguments.py`), know a command or a setting of a run.
"""
