"""One program for each peer. They run in the peers' environments, where dppo_redis is not installed.

Such a program gets a JSON object as its argument: `variant`, `steps`, `target` (null: none), `seed` and an
empty `directory` for its files. It trains CartPole-v1 with 8 environments and prints one JSON line: `steps`,
`seconds` and `steps_per_s` of training, `return` (mean of the last 100 episodes), `target_s` and
`target_steps` (null: not reached).
"""
