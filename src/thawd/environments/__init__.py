"""Execution environments, from start to end: each is one process, which runs one invocation at a time.

Reading order: `version` (what a process runs), `starts` (how the process is started), `environment` (invocations, time
limits and the end), `runtime_api` (programs other than thawd's runtime), `sandbox` (limits and rights of a process).
"""
