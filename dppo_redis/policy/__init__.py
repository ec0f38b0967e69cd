"""Networks, and the policies that act with them, in numpy and torch.

Re-exports nothing: actors import torch only where a network needs it.
"""
