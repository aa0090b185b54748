"""Where functions run: from an `Invocation` to a `Result`.

Reading order: `dispatcher` (which version, may it run), `pool` (which environment), `node` (how many fit this machine),
`spawner` and `template` (how one starts), `environment` (one process, one invocation at a time).
"""
