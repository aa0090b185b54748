"""Limits what an environment's process may use: memory, CPU time, processes, storage, capabilities.

- `memory`: the memory limit
- `cpu`: CPU time in proportion to memory
- `process_limit`: at most 1,024 processes and threads
- `storage`: the size of the temporary folder
- `capabilities`: drops capabilities
- `controllers`: adds controllers of cgroup version 1 to the memory limit
"""
