"""What travels between the platform and an execution environment: frames, and the head of a response stream.

Standard library only, Python 3.9 and later: the runtime imports it.
"""
