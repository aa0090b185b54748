"""Load and what comes of it: ``thawd bench``.

Owns the load generator, what it records, and its reports. Serves nothing and starts nothing but private servers, as
programs; imports neither the server nor the command line.
"""
