"""The public path of the exports' reader: `from dppo_redis.exports import load_export`."""

from dppo_redis.artefacts.exports import load_export as load_export
