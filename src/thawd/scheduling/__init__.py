"""Scheduling: decides when each invocation runs, and in which environment.

Reading order: `dispatcher` (finds the version and applies concurrency limits), `pool` (leases environments of one
version), `admission` (when a request may begin), `room` (how many environments fit on this machine), `keep_alive` (how
long idle environments are kept), `provisioned` (how many are kept initialised). The package `thawd.environments` starts
the environments.
"""
