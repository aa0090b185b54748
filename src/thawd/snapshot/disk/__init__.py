"""The temporary folders of execution environments: `folders` makes them and keeps them with a snapshot."""
