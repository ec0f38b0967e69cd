"""Comparisons of an old commit with this checkout, through what stays when code moves.

Command line, run directories, event logs and Redis only: no module of the product is imported here,
so that both sides can be of any layout.
"""
