"""Runs a server: `serving` starts, drains and stops it, `reload` replaces its configuration.

`debugged_functions` says what concerns only ``--debug``. `assembly` builds the parts of a server and connects them.
`process_settings` sets up the server's process. `port_and_folder_locks` locks the data folder and opens the port,
`drain_time` serves on while clients turn away from a server that is to stop, `backup` copies the server's data,
`emulator` implements ``thawd up --aws``, and `measurement` contains the programs that serve a function while ``thawd
bench`` or ``thawd tune`` measures it. This package does not import `thawd.cli`.
"""
