"""The Lambda API over HTTP: Invoke, streamed responses, and the control plane's operations."""
