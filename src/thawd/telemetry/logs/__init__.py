"""Functions' logs: `writer` appends lines to files, `groups` names the files, the other modules read them."""
