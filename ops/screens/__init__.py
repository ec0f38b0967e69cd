"""The screens: live view, summary tables and figures.

They show reports and make no decisions about training. `watch.py` also detects failed services.
"""
