"""Measuring: load against a function, a route or any URL, and what comes of it in tables, files and plots.

Owns the load generator, what it records, and how that is shown. Starts nothing but a private server for measurements,
as a program; imports neither the server nor the command line.
"""
