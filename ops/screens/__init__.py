"""What people look at: live view, summary, figures.

Reads reports; decides nothing.
"""
