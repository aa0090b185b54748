"""The command line ``thawd``. Each command or group of commands has a module, and `program` combines them.

The commands share four modules: `client` sends requests to the running server, `options` defines options that several
commands have, `exits` ends a command with an exit status, and `output` prints. Large modules are imported inside the
functions that need them, so that ``thawd --help`` does not wait for their import. Only `thawd.__main__` imports this
package.
"""
