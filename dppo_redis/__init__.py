"""What actors, learner and operators share: values, rules, the wire format and the Redis keys."""

__version__ = "0.1.0"
