"""Comparisons of an old commit with this checkout, through outputs that do not depend on the code's layout.

Command line, run directories, event logs and Redis only: no module of the product is imported here,
so that both sides can be of any layout.
"""
