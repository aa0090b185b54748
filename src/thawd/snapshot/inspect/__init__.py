"""Images read in pure Python: `reader` checks a file and returns an `Image`; ``thawd snapshot inspect``."""
