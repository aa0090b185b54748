"""HTTP in, `Invocation` out, and back: the Invoke API, routes, objects, status. The only importer of Starlette.

`application` decides which of them a request is for.
"""
