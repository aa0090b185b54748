"""thawd's own API under ``/_thawd``: queue of asynchronous events, dead letters, sources, records, probes."""
