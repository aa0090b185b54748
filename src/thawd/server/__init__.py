"""The life of a server: `serving` starts, drains and stops it, `reload` replaces its configuration.

`compose` puts the subsystems together. `claims` locks the data folder and the port, `backup` copies what a server
stores, `emulator` is ``thawd up --aws``, and `private` starts servers for measurements. Knows nothing of the command
line.
"""
