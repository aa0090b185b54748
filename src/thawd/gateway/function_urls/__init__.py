"""Function URLs: HTTP addresses that each belong to one function.

- `endpoint`: serves a request: checks who may call, invokes, answers
- `events_and_responses`: events from requests, and responses from handlers' answers
- `table`: finds the function that a URL belongs to
"""
