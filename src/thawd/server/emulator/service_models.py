"""Lets all of botocore's sessions in a process share what they read. Runs in the emulator's own process.

A session reads botocore's list of endpoints, and the models of the services that it is used for. moto makes a session
wherever it needs the names of regions, five of them when the first stack is made. Each took 0.08 s to read the list,
on a machine with 2 cores.

Source: botocore's documentation of `botocore.loaders`: data is cached in the loader.
"""

from __future__ import annotations

import functools

import botocore.session


def share() -> None:
    """Give all sessions that are made from now on, and look for data in the same folders, the same loader.

    Sessions do not change what they read, so that clients of one session share it, too.
    """
    loader_of = functools.cache(botocore.session.create_loader)
    setattr(botocore.session, "create_loader", loader_of)  # noqa: B010 - mypy forbids to assign to a function
