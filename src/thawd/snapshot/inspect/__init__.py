"""Reads images in pure Python: `reader.read` checks a file and returns an `Image`."""
