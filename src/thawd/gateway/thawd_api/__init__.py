"""thawd's own API under ``/_thawd``: the asynchronous queue, dead letters and event sources."""
