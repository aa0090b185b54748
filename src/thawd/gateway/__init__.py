"""The HTTP gateway: turns HTTP requests into invocations, and serves buckets, logs, metrics and thawd's own pages.

`application` decides which part of the gateway serves a request.
"""
