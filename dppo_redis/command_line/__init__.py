"""What users write on command lines: declared options, values, help texts, names of other libraries.

These modules know no command and no setting of a run. `service/arguments.py` parses command lines.
"""
