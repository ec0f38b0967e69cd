"""The learner's intake: reads rollouts from the stream, judges, decodes and batches them.

No gradients. It writes settlements alone.
"""
