"""What will not be right after a thaw: `search` looks through an initialised process; ``thawd snapshot lint``.

Runs in the function's process: standard library only, Python 3.9 and later.
"""
