"""``thawd bench``: the load generator, the records of its requests, and reports about them.

This package sends requests and does not serve them. To measure how a function behaves with a chosen kind of start, it
starts a private server, a second thawd server that runs only for the measurement, as a separate program. The package
imports neither `thawd.server` nor `thawd.cli`.
"""
