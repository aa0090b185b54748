"""The life of a server: `serving` starts, drains and stops it, `reload` replaces its configuration.

`compose` puts the subsystems together. The data folder's lock (`claims`), backup and the emulator of other AWS services
belong here too. Knows nothing of the command line.
"""
