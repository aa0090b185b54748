"""Limits what an environment's process may use: memory, CPU time, processes, storage, capabilities."""
