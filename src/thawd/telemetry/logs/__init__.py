"""Functions' logs: `writer` appends lines to files, the other modules read them."""
