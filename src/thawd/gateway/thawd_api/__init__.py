"""thawd's own API under ``/_thawd``: the queue of asynchronous events, dead letters and event sources."""
