"""Reads images in pure Python: `reader` checks a file and returns an `Image`."""
