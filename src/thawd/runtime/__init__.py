"""The program inside an execution environment: loads the handler, answers invocations, is frozen and thawed, forks.

Standard library only, Python 3.9 to 3.14, no asyncio, no threads. Of thawd it imports `thawd.wire.frames`, and of
`thawd.snapshot` what runs in a function's process, because it runs in the function's interpreter, where thawd need not
be installed, and because whatever it imports is part of every environment's start and memory.

Reading order: `bootstrap` (the program), `modes` (what it is started as), `handler` (init phase), `loop` (invoke
phase), `invoking` (one invocation), `freezing` (from init to the freeze, and from a thaw to ready), `priming`,
`sources`, `template` (fork).
"""
