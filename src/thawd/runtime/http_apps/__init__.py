"""Handlers that are web applications: calls ASGI and WSGI applications, and typed functions, with HTTP events.

The package is imported only for such handlers. It uses only the standard library of Python 3.9 and later; only `asgi`
and `lifespan` use asyncio.

Reading order: `requests` (the request in an event), `responses` (an answer, whole or streamed), `handler` (what the
handlers share), `asgi`, `lifespan`, `wsgi`, `typed_functions`.
"""
