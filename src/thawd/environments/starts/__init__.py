"""How an environment's process comes to be, the fastest way that is possible: thaw, fork, cold.

Reading order: `spawner` (which way, and what when it fails), `snapshots` (from a version to an image), `starter` (each
way, step by step), `launcher` (programs and processes), `template` (a process that is frozen and forked).
"""
