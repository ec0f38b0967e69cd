"""One file for each `dppo-redis` command, with its name.

A command parses its options and calls other modules. It decides nothing about training.
"""
