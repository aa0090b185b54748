"""The durable queue of asynchronous events: `queue` holds events, leases and outbox, `dead_letters` what failed."""
