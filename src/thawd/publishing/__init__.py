"""From a declared function to a version that serves.

Reading order: `publisher` (the one way, for thawd.toml and for the API), `build` (what a version is made of),
`interpreters` and `requirements` (what runs it), `linting` (``thawd snapshot lint``). Versions are started and served
through `thawd.scheduling`; images of them are made in `thawd.environments.starts`.
"""
