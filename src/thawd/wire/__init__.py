"""The data exchanged between the platform and an execution environment: frames, and the parts of streamed answers.

Only the standard library is used. The runtime imports `frames`, which therefore must run on Python 3.9.
"""
