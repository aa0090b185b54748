"""Taking over a changed configuration while the server serves; a mistake in it changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from thawd import config
from thawd.config import Settings
from thawd.errors import ConfigurationError
from thawd.server.compose.platform import Platform
from thawd.telemetry.console import complain, say

# What the stores and the port were opened by, with the words for it.
_FIXED = {"server": "server", "buckets": "buckets", "remote_buckets": "buckets elsewhere", "tables": "tables"}


class Reloads:
    """Reads the configuration anew and puts it into force.

    Args:
        platform: the subsystems of the server.
        environ: the platform's environment variables.
    """

    def __init__(self, platform: Platform, *, environ: Mapping[str, str]) -> None:
        self._platform = platform
        self._environ = environ
        self._told: str | None = None

    async def reload(self) -> None:
        """Read the configuration anew and publish what has changed, with a word of it. Never raises."""
        self._told = None
        self._platform.execution.builder.distrust()
        if await self.catch_up(retry=True):
            say("configuration reloaded")

    async def catch_up(self, *, retry: bool = False) -> bool:
        """The same, silent when there is nothing new to tell; whether the configuration is in force.

        Args:
            retry: publish again also what has not changed, where init or the priming event failed last time.
        """
        try:
            settings = await asyncio.to_thread(config.load, self._platform.settings.path, environ=self._environ)
            await self._take_over(settings, retry=retry)
        except ConfigurationError as error:
            self._complain_once(f"thawd: the configuration was not reloaded:\n{error}")
            return False
        except Exception as error:  # a reload that fails must leave the server serving
            self._complain_once(f"thawd: the configuration was not reloaded: {error!r}")
            return False
        return True

    def _complain_once(self, text: str) -> None:
        if text != self._told:
            self._told = text
            complain(text)

    async def _take_over(self, settings: Settings, *, retry: bool) -> None:
        in_force = {name: getattr(self._platform.settings, name) for name in _FIXED}
        changed = [words for name, words in _FIXED.items() if getattr(settings, name) != in_force[name]]
        if changed:
            self._complain_once(f"thawd: changes of {', '.join(changed)} take effect at the next start")
        self._platform.take_over(msgspec.structs.replace(settings, **in_force))
        await self._platform.control.publish(retry=retry)
        await self._platform.sources.declare()
