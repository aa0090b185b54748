"""HTTP in, `Invocation` out, and back: the Invoke API, routes, objects, status.

`application` decides which part of the gateway serves a request.
"""
