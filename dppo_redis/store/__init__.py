"""The only user of redis: keys, connections, streams, weights, registry, scripts.

Rules of training live elsewhere.
"""
