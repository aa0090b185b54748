"""Where events come from besides a call: objects in buckets, the queue of asynchronous invocations, destinations.

Everything here stores an event first and lets the dispatcher run it afterwards. Stands beside the gateway, above
execution and state.
"""
