"""The command line ``thawd``: a module for each command or group of commands; `program` combines them.

The commands share four modules: `client` sends requests to the running server, `options` defines options that several
commands have, `exits` ends a command with an exit status, and `output` prints. Large modules are imported inside the
commands, so that ``thawd --help`` is instant. Only `thawd.__main__` imports this package.
"""
