"""The program inside an execution environment: loads the handler, answers invocations, forks when it is a template.

Standard library only, Python 3.9 to 3.14, no asyncio, no threads. It imports `thawd.wire` and nothing else of thawd,
because it runs in the function's interpreter, where thawd need not be installed, and because whatever it imports is
part of every environment's start and memory.

Reading order: `bootstrap` (the program), `handler` (init phase), `loop` (invoke phase), `template` (fork).
"""
