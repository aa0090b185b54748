"""Starts the process of an environment in the fastest way that is possible: thaw, else fork, else cold start.

Reading order: `spawner` (chooses the kind of start, and another when it fails), `origin` (what a version is started
from), `snapshots` (from a version to an image), `kinds` (each kind of start, step by step), `launcher` (programs and
processes), `template` (a process that is frozen and forked).

When a request finds no idle environment, these calls lead to a new process::

    Pool.grow -> Room.reserve, Room.start      reserves capacity; ends idle environments if no process can be started
      -> Spawner.start -> _start_fastest       thaw, else fork, else cold; retries if the process is killed from outside
        -> Starter.thaw | fork | cold          one kind of start: identity, channels, process; waits until it is ready
          -> Launcher.begin, thaw | execute    descriptors, temporary folder, exec; follows the process until it ends
            -> Children.watch

However the process ends, `Children` learns that from the pidfd and completes `Child.ended`. `Environment` then reads
what is left in its channels and calls `on_end`, and the pool releases the capacity. `Launcher` removes what the process
left behind.
"""
