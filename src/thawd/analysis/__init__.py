"""What measurements say: load and what comes of it, what functions cost, how much memory suits them.

Owns the load generator, what it records, and how that is shown. Serves nothing and starts nothing but private servers,
as programs; imports neither the server nor the command line.
"""
