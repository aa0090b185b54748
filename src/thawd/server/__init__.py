"""Runs a server: `serving` starts, drains and stops it, `reload` replaces its configuration.

`assembly` connects the subsystems. `exclusive_resources` locks the data folder and opens the port, `backup` copies the
server's data, `emulator` implements ``thawd up --aws``, and `measurement` contains the servers for ``thawd bench`` and
``thawd tune``. This package does not import `thawd.cli`.
"""
