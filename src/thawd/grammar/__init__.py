"""Parses texts into values: destinations, queue names, event patterns, schedule expressions, log filters, wildcards.

The functions here have no side effects: they do no I/O, read no clock and keep no state.
"""
