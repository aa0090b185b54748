"""How an environment's process is started, in the fastest way that is possible: thaw, fork, cold.

Reading order: `spawner` (which way, and what follows when it fails), `origin` (what a version is started from),
`snapshots` (from a version to an image), `kinds` (each kind of start, step by step), `launcher` (programs and
processes), `template` (a process that is frozen and forked).

The calls of a start, from a request without an idle environment to a process::

    Pool.grow -> Room.reserve, Room.start      room on this machine; ends idle environments where no process is left
      -> Spawner.start -> _start_fastest       tries again what was killed from outside; thaw, else fork, else cold
        -> Starter.thaw | fork | cold          one way: identity and channels, process, wait until it is ready
          -> Launcher.begin, thaw | execute    descriptors, temporary folder, exec; follows the process to its end
            -> Children.watch

and of an end, by whatever means: `Children` learns it from the pidfd, `Child.ended` is done, `Environment` reads what
is left in its channels and calls `on_end`, and the pool releases the room; `Launcher` removes what is left behind.
"""
