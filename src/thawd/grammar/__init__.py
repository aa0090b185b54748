"""Parses text into values: destinations, queue names, event patterns, schedule expressions, log filters.

Pure: no I/O, no clock, no state.
"""
