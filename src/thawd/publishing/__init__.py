"""Publishing: turns a declared function into a version that serves.

`thawd.scheduling` starts and serves versions. `thawd.environments.starts` freezes them.

- `publisher`: publishes all versions, from thawd.toml and from the API
- `build`: builds a version: code, interpreter, layers, variables
- `container_images`: builds a version whose code is a container image
- `interpreters`: finds the Python interpreter of a function
- `virtual_environments`, `requirement_files`, `uv`: install requirements, with uv or pip
- `layer_merge`: merges layers into one folder (``/opt``)
- `lint_command`: ``thawd snapshot lint``
"""
