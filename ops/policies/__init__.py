"""Loads a trained policy, and writes videos and ONNX graphs of it, for the commands.

No training, no Redis.
"""
