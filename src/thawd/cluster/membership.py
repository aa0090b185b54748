"""Connections to the other machines: each machine sends its summary to all others several times a second.

The other machines are those of a fixed list, or those that `set_machines` names, which come and go. A machine whose
connection has ended is forgotten immediately, one that is silent after `SILENCE_S`. In both cases requests are no
longer placed there. Nothing else depends on it: a machine that is wrongly forgotten is only not used.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import fields

from thawd.cluster import channel
from thawd.cluster.links import TICK_S, Credentials, Link, Links, NotRunError
from thawd.cluster.machine_index import MachineIndex, Summary
from thawd.system.retry import SayOnce

SUMMARY_S = 0.1
SILENCE_S = 2.0
_MOST_UNSENT_BYTES = 1 << 20
_UNACKNOWLEDGED_S = 5.0
# A machine that has joined a moment ago is perhaps not known everywhere yet.
_UNREACHABLE_S = 3.0
_ALWAYS_SENT = tuple(field.name for field in fields(Summary) if field.name != "images")


class Membership:
    """Sends this machine's summary to the others.

    Args:
        credentials: see `Link`.
        addresses: host and port of each other machine.
        index: the machines that are alive; this machine is kept in it, too.
        summarise: returns this machine's summary.
        report: called with a line for the operator.

    Attributes:
        links: connections to each other machine.
        unreachable: why other machines cannot be reached, by name.
    """

    def __init__(
        self,
        credentials: Credentials,
        addresses: Mapping[str, tuple[str, int]],
        index: MachineIndex,
        *,
        summarise: Callable[[], Summary],
        report: Callable[[str], object],
    ) -> None:
        self._own = credentials.own
        self._index = index
        self._summarise = summarise
        self._reports = SayOnce(report)
        self._credentials = credentials
        self._addresses: dict[str, tuple[str, int]] = {}
        self.links: dict[str, Links] = {}
        self.unreachable: dict[str, str] = {}
        self._leaving: list[Links] = []  # of machines that have left, until their last requests have ended
        self._summary_links: dict[str, Link] = {}
        self._sent_images: dict[str, frozenset[str]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._connecting: dict[str, asyncio.Task[None]] = {}
        self.set_machines(addresses)

    def set_machines(self, addresses: Mapping[str, tuple[str, int]]) -> None:
        """From now on, these are the other machines: host and port of each, by name.

        Requests that run on a machine that has left continue.
        """
        for name in [name for name, address in self._addresses.items() if addresses.get(name) != address]:
            del self._addresses[name]
            self._leaving.append(self.links.pop(name))
            if (task := self._connecting.pop(name, None)) is not None:
                task.cancel()
            self._index.remove(name)
            self.unreachable.pop(name, None)
            self._reports.resolved(topic=name)
        for name, address in addresses.items():
            if name not in self._addresses:
                self._addresses[name] = address
                self.links[name] = Links(self._credentials, name, *address)
                if self._tasks is not None:
                    self._connecting[name] = self._tasks.create_task(self._keep_connected(self.links[name]))

    async def run(self, on_tick: Callable[[], None]) -> None:
        """Send summaries until cancelled, and call `on_tick` every TICK_S seconds."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for name, links in self.links.items():
                self._connecting[name] = tasks.create_task(self._keep_connected(links))
            ticked_s = 0.0
            while True:
                now_s = time.monotonic()
                self.send_summaries()
                for name in self._index.expire(now_s):
                    self._reports.say(f"thawd: the machine {name} is silent", topic=name)
                if now_s - ticked_s >= TICK_S:
                    ticked_s = now_s
                    on_tick()
                    for links in [links for links in self._leaving if not links.are_used]:
                        self._leaving.remove(links)
                        links.close()  # the machine perhaps comes back, and does not end idle connections by itself
                    for links in (*self.links.values(), *self._leaving):
                        links.tick()
                await asyncio.sleep(SUMMARY_S)

    def send_summaries(self) -> None:
        """Send this machine's summary to all machines that it is connected to."""
        summary = self._summarise()
        self._index.update(self._own, summary, time.monotonic())
        head = {name: getattr(summary, name) for name in _ALWAYS_SENT}
        for name, link in self._summary_links.items():
            if link.unsent_bytes > _MOST_UNSENT_BYTES:
                link.close()  # the other machine does not read
            elif self._sent_images.get(name) == summary.images:
                link.send(channel.SUMMARY, head)
            else:
                self._sent_images[name] = summary.images
                link.send(channel.SUMMARY, {**head, "images": sorted(summary.images)})

    async def _keep_connected(self, links: Links) -> None:
        name = links.peer
        failing_s: float | None = None
        while True:
            try:
                link = await links.open()
            except NotRunError as error:
                failing_s = failing_s or time.monotonic()
                self.unreachable[name] = str(error)
                if time.monotonic() - failing_s >= _UNREACHABLE_S:
                    self._reports.say(f"thawd: {error}", topic=name)
            else:
                failing_s = None
                self.unreachable.pop(name, None)
                self._reports.resolved(f"thawd: the machine {name} is there")
                link.limit_unacknowledged(_UNACKNOWLEDGED_S)
                self._summary_links[name] = link
                self._sent_images.pop(name, None)
                try:
                    await link.ended.wait()
                finally:
                    if self._summary_links.get(name) is link:
                        del self._summary_links[name]
                    link.close()
                    links.end_idle()
            await asyncio.sleep(SUMMARY_S)

    def close(self) -> None:
        """End all connections that this machine has opened."""
        for links in (*self.links.values(), *self._leaving):
            links.close()
        for link in self._summary_links.values():
            with contextlib.suppress(RuntimeError):
                link.close()
