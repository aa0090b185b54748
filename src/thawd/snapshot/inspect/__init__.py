"""Reads images, the files with the state of frozen processes, in pure Python: `reader.read` returns an `Image`."""
