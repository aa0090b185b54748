"""What an environment's process may use: memory, processors, processes, storage, capabilities."""
