"""thawd's own API under ``/_thawd``: the queue and the event sources."""
