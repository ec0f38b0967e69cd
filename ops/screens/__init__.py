"""The screens: live view, summary tables and figures.

They show reports and decide nothing about training. `watch.py` also detects failed services.
"""
