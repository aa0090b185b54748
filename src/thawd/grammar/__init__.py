"""Parses destinations, queue names, event patterns, schedule expressions and log filters, and matches wildcards.

The functions here have no side effects: they do no I/O, read no clock and keep no state.
"""
