"""Where functions run: from an `Invocation` to a `Result`.

Reading order: `dispatcher` (which version, may it run), `pool` (which environment), `node` (how many fit this machine),
`spawner` (which way one starts, and what when that fails), `snapshots` (from a version to an image), `starter` (each
way, step by step), `launcher` (programs and processes), `environment` (one process, one invocation at a time),
`template` (one that is frozen and forked).
"""
