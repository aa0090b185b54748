"""Data between the platform and an execution environment: frames, and the parts of streamed answers.

Standard library only. The runtime imports `frames`, which therefore runs on Python 3.9.
"""
