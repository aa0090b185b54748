"""Text into values and back: destinations, queue names, event patterns, schedules, log filters.

Pure: no I/O, no clock, no state.
"""
