"""The life of a server: `serving` starts, drains and stops it, `reload` replaces its configuration.

`assembly` puts the subsystems together. `exclusive_resources` locks the data folder and the port, `backup` copies
what a server stores, `emulator` is ``thawd up --aws``, `measurement` has the servers of ``thawd bench`` and ``thawd
tune``. Knows nothing of the command line.
"""
