"""Finds out what a handler is from its source, without importing it: for ``thawd check``, ``run`` and ``init``.

The rules are those of `thawd.runtime.handler_kinds`, which decides when the handler is imported. Source code can make
names in ways that no reader of the source can foresee. Then this package says that it does not know.

`modules` (files of modules, and the names in them), `kinds` (what the object behind a name is), `imports` (packages
that a module needs and an interpreter does not have), `handlers` (the handler of one function), `served_files` (what
can be served of a file).
"""
