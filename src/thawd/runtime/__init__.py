"""The program inside an execution environment: it loads the handler, answers invocations, freezes itself and forks.

This package uses only the standard library of Python 3.9 to 3.14, not asyncio, and starts no threads. From thawd it
imports only `thawd.wire.frames`, `thawd.streaming` and the modules of `thawd.snapshot` that run in a function's
process. There are two reasons: it runs in the function's interpreter, where thawd need not be installed, and each
import makes every environment start more slowly and use more memory.

Reading order: `bootstrap` (the program), `modes` (the roles of the process), `handler` (init phase), `loop` (invoke
phase), `invoking` (one invocation), `freezing` (from init to the freeze, and from a thaw to ready), `priming`,
`changed_files`, `template` (fork). Under ``--debug``: `debugging`, `terminal_debugger`.
"""
