"""Benchmarks, run by hand. Each prints a Markdown table and measures against something real."""
