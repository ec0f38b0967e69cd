"""The words of command lines: declared options, the form of values, help texts, foreign names.

They do not parse a command line (`service/arguments.py` does), and know no command or setting of a run.
"""
