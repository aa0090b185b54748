"""The temporary folders of execution environments: `temporary_folders` makes them and stores their contents."""
