"""``thawd bench``: the load generator, the records of its requests, and reports about them.

This package does not serve requests. To measure a function under conditions of its own, it starts a private server (a
second thawd server that runs only for the measurement) as a separate program. The package imports neither
`thawd.server` nor `thawd.cli`.
"""
