"""State that the machines of a cluster share, in a PostgreSQL database.

- `sessions`: connections that are opened again after they broke; whether a transaction happened
- `access`: the database for code that runs in the event loop
- `schema`: the tables, and how a database is brought up to date
- `leases`: leases with fencing tokens, measured only by the database's clock
- `lease_thread`: renews the leases of a process, and takes those that nobody holds
- `machines`: the machines that are alive, each with a short summary
- `concurrency`: how much of each concurrency limit each machine may use
- `cluster_settings`: settings of the whole cluster
- `event_copies`, `copier`: copies of each machine's events, which others take over when the machine is dead
- `saved_tables`: saves the tables to files, and loads them into an empty database
- `leader_state`: what the leader must know about the leader before it: progress of schedules and streams
"""
