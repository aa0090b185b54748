"""The Lambda API over HTTP: Invoke, streamed responses, and the control plane's operations.

- `control`: the control plane: finds a request's operation, checks its input, answers
- `operations`: calls the method of `thawd.control` that carries out an operation
- `inputs`, `input_constraints`: check an operation's input: types and missing fields; lengths, ranges and patterns
- `invoke`, `invoke_request`, `invoke_stream`, `event_stream`: Invoke and InvokeWithResponseStream
- `payload_errors`: where and why a payload is not JSON
"""
