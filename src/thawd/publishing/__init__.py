"""Publishing: turns a declared function into a version that serves.

Reading order: `publisher` (publishes all versions, from thawd.toml and from the API), `build` (builds a version),
`interpreters`, `virtual_environments`, `requirement_files` and `uv` (the Python that runs it), `lint_command`
(``thawd snapshot lint``). `thawd.scheduling` starts and serves versions, `thawd.environments.starts` freezes them.
"""
