"""The public path of the player of a policy: `from dppo_redis.playing import Player`."""

from dppo_redis.policy.player import Player as Player
