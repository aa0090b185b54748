"""Execution environments: one process each, one invocation at a time, from its start to its end.

Reading order: `version` (what a process runs), `starts` (how its process comes to be), `environment` (invocations, time
limits, the end), `runtime_api` (programs that bring a runtime of their own), `sandbox` (what a process may use).
"""
