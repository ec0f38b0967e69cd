"""Attacks on a running fleet, and the proof that its promises held: `make chaos`."""
