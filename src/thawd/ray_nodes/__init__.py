"""Runs thawd on the nodes of a Ray cluster: Ray starts and restarts it there, and scales the nodes.

Ray does nothing else. Which machines belong to thawd's cluster is decided by leases in PostgreSQL, and requests go
directly from thawd to thawd. Two kinds of Ray actors exist, both detached, in Ray's namespace ``thawd``:

- `supervisor`: one; keeps an agent on each node, and tells Ray's autoscaler how many machines are needed
- `agent`: one on each node; keeps one thawd running there, a child process

The modules:

- `options`: what `thawd cluster ray up` was asked for
- `launching`: what the commands do: they start, ask and end the supervisor
- `ray_library`: imports and connects Ray
- `shipping`: packs the project's folder for the nodes
- `plan`: which nodes get an agent, and which agents stop (pure)
- `demand`: how many machines the load needs (pure)
- `leader_view`: what the leader sees, and what Ray's autoscaler is told because of it
- `data_folders`: a data folder for each node
- `admission`: how the thawd of a node gets the credentials of its cluster
- `keeper`: starts the thawd of a node, watches it, starts it again, stops it
- `server_process`: the process of that thawd
- `local_server`: requests to it

Ray is an optional package, so functions import it, and no module does.
"""
