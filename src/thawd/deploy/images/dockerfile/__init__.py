"""Dockerfiles: read, and planned. Nothing here touches a store or starts a process.

- `parsing`: text to instructions
- `substitution`: ``$VARIABLES`` and quotes
- `planning`: the stages that a target needs, in the order in which they are built
- `ignoring`: ``.dockerignore``

Source: https://docs.docker.com/reference/dockerfile/
"""
