"""Finds state that will be wrong after a thaw, for ``thawd snapshot lint``: `search` examines an initialised process.

The search runs in a process that has run the function's init. Standard library only, Python 3.9 and later.
"""
