"""Finds state that will be wrong after a thaw, for ``thawd snapshot lint``: `search` looks at an initialised process.

Runs in the function's process: standard library only, Python 3.9 and later.
"""
