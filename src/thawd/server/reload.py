"""Applies a changed configuration while the server runs, on SIGHUP and with ``thawd up --watch``.

A configuration with a mistake changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from thawd import config
from thawd.cluster.local_settings import localized
from thawd.config import Settings
from thawd.errors import ConfigurationError
from thawd.gateway.thawd_api.probes import READINESS
from thawd.server.assembly.platform import Platform
from thawd.server.greeting import Announcements
from thawd.system.retry import SayOnce
from thawd.telemetry.console import complain, say

# Settings that take effect only after a restart, because the open stores and the port depend on them, and the words for
# these settings in messages.
_FIXED = {
    "server": "server",
    "buckets": "buckets",
    "remote_buckets": "remote buckets",
    "tables": "tables",
    "cluster": "cluster",
}


class Reloader:
    """Reads the configuration again and applies it.

    Args:
        platform: the subsystems of the server.
        environ: the platform's environment variables.
    """

    def __init__(self, platform: Platform, *, environ: Mapping[str, str]) -> None:
        self._platform = platform
        self._environ = environ
        self._reports = SayOnce(complain)
        self._announcements = Announcements(platform)

    def announce(self) -> bool:
        """Print what is served since the call before, once all functions are published. Return whether that is any."""
        if self._platform.phase != READINESS:
            return False
        lines = self._announcements.new()
        for line in lines:
            say(f"  {line}")
        return bool(lines)

    async def reload(self) -> None:
        """Read the configuration again, publish what has changed, and print a line about that. Never raises."""
        self._reports.resolved()
        self._platform.execution.builder.forget_checks()
        if await self.catch_up(retry=True) and self._platform.phase != "stopping":
            say("configuration reloaded")

    async def catch_up(self, changed: str = "", *, retry: bool = False) -> bool:
        """Read the configuration again and publish what has changed. The same complaint is not printed at every call.

        Args:
            changed: names of changed files, for messages; empty: unknown.
            retry: also publish unchanged functions whose init or priming event failed last time.

        Returns:
            Whether the configuration was applied.
        """
        try:
            configured = self._platform.control.configured
            configured.changed, reported = changed, configured.reported
            settings = await asyncio.to_thread(config.load, self._platform.settings.path, environ=self._environ)
            if self._platform.phase == "stopping":
                return False
            await self._take_over(localized(settings), retry=retry)
            if changed and not self.announce() and configured.reported == reported:
                say("nothing to publish")
        except ConfigurationError as error:
            self._reports.say(f"thawd: the configuration was not reloaded:\n{error}")
            return False
        except Exception as error:  # the server must continue to serve after a failed reload
            self._reports.say(f"thawd: the configuration was not reloaded: {error!r}")
            return False
        return True

    async def _take_over(self, settings: Settings, *, retry: bool) -> None:
        in_force = {name: getattr(self._platform.settings, name) for name in _FIXED}
        changed = [words for name, words in _FIXED.items() if getattr(settings, name) != in_force[name]]
        if changed:
            self._reports.say(f"thawd: changes to {', '.join(changed)} take effect when thawd is restarted")
        self._platform.take_over(msgspec.structs.replace(settings, **in_force))
        await self._platform.control.publish(retry=retry)
        if self._platform.phase != "stopping":
            await self._platform.sources.declare()
