"""One file for each `dppo-redis` command, named like it.

A command parses and calls; it holds no rule.
"""
