"""What one machine does of the configuration that all machines of a cluster share.

With a list of machines, each has its share of each function's reserved and provisioned concurrency
(`thawd.cluster.shares.split`), and event sources invoke functions from the first machine only, so that an event is not
handled once on each machine. Machines that find each other in a database share limits and sources as they come and go
(`thawd.cluster.limits`).
"""

from __future__ import annotations

import msgspec

from thawd.cluster.shares import split
from thawd.config import Settings


def localized(settings: Settings) -> Settings:
    """Return the settings of the machine that they name; unchanged if there is no list of machines."""
    cluster = settings.cluster
    if cluster is None or not cluster.machines:
        return settings

    def share(limit: int) -> int:
        return split(limit, cluster.machines)[cluster.name]

    functions = {
        name: msgspec.structs.replace(
            function,
            reserved_concurrency=None
            if function.reserved_concurrency is None
            else share(function.reserved_concurrency),
            provisioned_concurrency=share(function.provisioned_concurrency),
        )
        for name, function in settings.functions.items()
    }
    settings = msgspec.structs.replace(settings, functions=functions)
    if cluster.name == next(iter(cluster.machines)):
        return settings
    quiet = {name: msgspec.structs.replace(b, notify=()) for name, b in settings.remote_buckets.items()}
    return msgspec.structs.replace(settings, sources={}, schedules={}, remote_buckets=quiet)
