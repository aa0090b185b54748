"""AWS Lambda's Runtime API and Extensions API: HTTP interfaces for Node, for a ``bootstrap`` and for extensions.

- `http_server`: the HTTP/1.1 server
- `endpoint`: the Runtime API
- `extensions_api`: the Extensions API
- `messages`: invocations and error documents as HTTP messages
"""
