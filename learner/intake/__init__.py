"""The gate: which rollouts are delivered, judged, decoded and batched.

No gradients, no writes but settlements.
"""
