"""HTTP in, `Invocation` out, and back: the Invoke API, routes, objects, status.

`application` decides which of them a request is for.
"""
