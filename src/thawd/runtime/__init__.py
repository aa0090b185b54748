"""The program inside an execution environment: loads the handler, answers invocations, is frozen and thawed, forks.

Standard library only, Python 3.9 to 3.14, no asyncio, no threads. Imports from thawd only `thawd.wire.frames`,
`thawd.streaming` and the modules of `thawd.snapshot` that run in a function's process. The reasons: this package runs
in the function's interpreter, where thawd need not be installed, and every import adds to the start and the memory of
every environment.

Reading order: `bootstrap` (the program), `modes` (the roles of the process), `handler` (init phase), `loop` (invoke
phase), `invoking` (one invocation), `freezing` (from init to the freeze, and from a thaw to ready), `priming`,
`init_files`, `template` (fork).
"""
