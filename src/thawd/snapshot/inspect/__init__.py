"""Reads images in pure Python, for ``thawd snapshot inspect``: `reader` checks a file and returns an `Image`."""
