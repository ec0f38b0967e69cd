"""The only user of redis: keys, connections, streams, weights, registry, scripts.

No rule of training is decided here.
"""
