"""The temporary folders of execution environments: `folders` makes them and stores their contents with snapshots."""
