"""What destinations of functions must be besides well-formed: there, another function, safe to send to."""

from __future__ import annotations

from collections.abc import Mapping

from thawd.config.findings import Findings, KeyPath, one_of
from thawd.config.kinds import is_loopback
from thawd.config.settings import Settings
from thawd.destination_names import address_of, function_of, is_fifo
from thawd.resources import Destination

_OPTIONS = ("on_success", "on_failure", "dead_letter")


def check_destinations(settings: Settings, findings: Findings, *, document: Mapping[str, object]) -> None:
    """Note every destination that cannot work, by what the file says.

    Functions and tables made through the Lambda API are not in the file: an ARN names them, and is not looked up.
    """
    checks = _Checks(settings, findings, document)
    for name, function in settings.functions.items():
        for option in _OPTIONS:
            destination = getattr(function, option)
            if destination is not None:
                checks.check(destination, ("functions", name, option))


class _Checks:
    def __init__(self, settings: Settings, findings: Findings, document: Mapping[str, object]) -> None:
        self._plain_http = settings.server.webhooks_plain_http
        self._findings = findings
        self._document = document

    def _names(self, section: str) -> list[str]:
        table = self._document.get(section)
        return list(table) if isinstance(table, dict) else []

    def _is_arn(self, path: KeyPath) -> bool:
        value: object = self._document
        for key in path:
            value = value[key] if isinstance(value, dict) else None
        return isinstance(value, str) and value.startswith("arn:")

    def check(self, destination: Destination, path: KeyPath) -> None:
        """Note what is wrong with one destination."""
        if destination.kind == "http":
            self._check_address(destination, path)
        elif destination.kind == "function":
            self._check_function(destination, path)
        elif is_fifo(destination):
            found = f'the FIFO one "{destination}"'
            self._findings.add(path, found=found, allowed="standard queues and topics, as on Lambda")
        elif destination.kind in ("table", "bucket"):
            self._check_there(destination, path)

    def _check_there(self, destination: Destination, path: KeyPath) -> None:
        names = self._names(f"{destination.kind}s")
        if destination.name not in names:
            existing = [f"{destination.kind}:{name}" for name in names]
            allowed = one_of(str(destination), existing, what=f"{destination.kind}s of this file")
            self._findings.add(path, found=f'"{destination}"', allowed=allowed)

    def _check_function(self, destination: Destination, path: KeyPath) -> None:
        name, _ = function_of(destination)
        if name == path[1]:
            allowed = "another function: one is no destination for itself"
            self._findings.add(path, found=f'"{destination}"', allowed=allowed)
        elif name not in self._names("functions") and not self._is_arn(path):
            existing = [f"function:{one}" for one in self._names("functions") if one != path[1]]
            allowed = one_of(str(destination), existing, what="functions of this file")
            self._findings.add(path, found=f'"{destination}"', allowed=f"{allowed}; others by ARN")

    def _check_address(self, destination: Destination, path: KeyPath) -> None:
        address = address_of(destination)
        if address is None:
            self._findings.add(path, found=f'"{destination}"', allowed="an address with the name of a host")
        elif address.username is not None or address.password is not None:
            allowed = "one without; requests are signed with server.webhook_secret instead"
            self._findings.add(path, found="an address with a user's name or password (not shown)", allowed=allowed)
        elif address.scheme == "http" and not self._plain_http and not is_loopback(address.hostname or ""):
            allowed = (
                "https:// for other machines than this one, or webhooks_plain_http = true in [server] where nobody "
                "between them can listen"
            )
            self._findings.add(path, found=f'"{destination}"', allowed=allowed)
