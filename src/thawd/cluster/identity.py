"""What identifies a version on all machines: two machines with the same identifier run the same code the same way.

A request is forwarded only to a machine whose version has the same identifier. So while machines get new code one after
the other, each request runs on the code of the machine where it entered.
"""

from __future__ import annotations

import hmac
import platform
from pathlib import Path

import msgspec

from thawd import __version__
from thawd.environments.version import Version

# Paths, which differ between machines, and numbers that are divided among the machines or concern one machine only.
_LOCAL = ("code", "requirements", "python", "reserved_concurrency", "provisioned_concurrency")
_DIGITS = 32


class Identities:
    """Finds the identifier of versions.

    Args:
        key: the cluster's key. Identifiers depend on it, because they also depend on environment variables, which may
            contain secrets that could be guessed.
    """

    def __init__(self, key: str) -> None:
        self._key = key.encode()
        self._known: dict[tuple[str, str], tuple[Version, str]] = {}

    def of(self, version: Version) -> str:
        """Return the identifier of a version: 32 hexadecimal digits."""
        place = (version.function.name, version.number)
        known = self._known.get(place)
        if known is None or known[0] is not version:
            known = self._known[place] = (version, self._computed(version))
        return known[1]

    def _computed(self, version: Version) -> str:
        fields = msgspec.structs.asdict(version.function)
        function = {name: value for name, value in fields.items() if name not in _LOCAL}
        has_requirements = version.function.requirements is not None
        parts = [
            __version__,
            platform.machine(),
            function,
            version.number,
            version.python_version,
            # The folder of a virtual environment is named by the content of the requirements file.
            version.python.parent.parent.name if has_requirements else "",
            Path(version.code).name,  # the digest of the code
            [Path(layer).name for layer in version.variables.get("THAWD_LAYERS", "").split(":")],
            "" if version.program is None else version.program.title,
            version.image_digest,
        ]
        message = msgspec.msgpack.encode(parts, enc_hook=str)
        return hmac.new(self._key, message, "sha256").hexdigest()[:_DIGITS]
