"""Dockerfiles: read, and planned. Nothing here touches a store or starts a process.

Reading order: `parsing` (text to instructions), `substitution` (``$VARIABLES`` and quotes), `planning` (instructions to
the stages that a target needs), `ignoring` (.dockerignore).

Source: https://docs.docker.com/reference/dockerfile/
"""
