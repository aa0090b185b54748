"""Other machines: which machine runs a request, and how the request gets there and its answer back.

- `forwarding`: runs each request on the machine that placement chooses
- `held_requests`: requests that wait until this or another machine can run them
- `placement`: decides which machine runs a request (pure)
- `machine_index`: the machines that are alive, found by idle environment, image and room (pure)
- `identity`: what identifies a version on all machines
- `membership`: connections to the machines that are alive
- `limits`: whether this machine may act, and its shares of concurrency limits
- `links`: connections that this machine opens, and requests that it forwards over them
- `listening`: connections that it accepts, and requests that it runs for others
- `questions`: what machines read of each other: overviews, logs, queues, records
- `own_state`: what a machine has for itself, sent to another one that makes a backup
- `overview`: all machines, as each describes itself
- `channel`: the frames on these connections
- `handshake`: how two machines prove that they belong to the same cluster
- `credentials`, `joining`: certificates that the cluster issues itself, and how a machine gets one
- `local_settings`: what each machine does of the common configuration
- `shares`: divides a concurrency limit among machines so that it is never exceeded (pure)
"""
