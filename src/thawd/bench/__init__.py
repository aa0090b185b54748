"""``thawd bench``: the load generator, the records of its requests, and reports about them.

This package does not serve requests. For a measurement it starts a private server as a separate program. It imports
neither `thawd.server` nor `thawd.cli`.
"""
