"""``thawd bench``: the load generator, the records of its requests, and reports about them.

Serves nothing. It starts only private servers, as programs, and imports neither the server nor the command line.
"""
