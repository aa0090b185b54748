"""Checks a function's destinations of asynchronous invocations: ``on_success``, ``on_failure`` and ``dead_letter``.

A destination must exist, must not lead back to the same function for ever, and must be safe to send data to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from thawd.config.findings import Findings, KeyPath, one_of
from thawd.config.kinds import is_loopback
from thawd.config.settings import Settings
from thawd.grammar.destination_names import address_of, function_of, is_fifo
from thawd.resources import Destination, Notification

_OPTIONS = ("on_success", "on_failure", "dead_letter")


def check_destinations(settings: Settings, findings: Findings, *, document: Mapping[str, object]) -> None:
    """Report the destinations for which the file alone shows that they cannot work.

    Functions that were created with the Lambda API are not in the file. A destination that is the ARN of a function may
    name one of them, so it is accepted even if the file does not declare that function.
    """
    checks = _Checks(settings, findings, document)
    for name, function in settings.functions.items():
        for option in _OPTIONS:
            destination = getattr(function, option)
            if destination is not None:
                checks.check(destination, ("functions", name, option))
    _check_circles(settings, findings)


def _check_circles(settings: Settings, findings: Findings) -> None:
    """Report destinations in buckets with notifications that would invoke the same function again.

    A running server cannot detect such a loop. An event that a function sends to another function contains the chain of
    invocations that led to it, but an object in a bucket does not.
    """
    for name, function in settings.functions.items():
        for option in ("on_success", "on_failure"):
            destination = getattr(function, option)
            if destination is None or destination.kind == "function":
                continue
            if name in _reached(settings, set(_invoked_by(settings, name, destination))):
                allowed = (
                    f'a bucket with no notification that leads back to "{name}", because the function would invoke '
                    "itself for ever"
                )
                findings.add(("functions", name, option), found=f'"{destination}"', allowed=allowed)


def _reached(settings: Settings, reached: set[str]) -> set[str]:
    """Return the functions in `reached`, and all functions that their outcomes invoke, directly or indirectly."""
    new = list(reached)
    while new:
        name = new.pop()
        function = settings.functions.get(name)
        for destination in (function.on_success, function.on_failure) if function is not None else ():
            following = set(_invoked_by(settings, name, destination)) - reached if destination is not None else set()
            reached |= following
            new += following
    return reached


def _invoked_by(settings: Settings, name: str, destination: Destination) -> Iterator[str]:
    """Yield the functions that every outcome of the function `name` invokes when it is sent to `destination`."""
    if destination.kind == "function":
        yield function_of(destination)[0]
    if destination.kind not in ("bucket", "s3"):
        return
    # Beginning and end that the keys of all outcomes in the bucket have. The rest of a key differs between outcomes, so
    # a notification with a longer prefix or suffix applies to some of them at most.
    key_begin, key_end = ("", ".json") if destination.kind == "bucket" else (f"aws/lambda/async/{name}/", "")
    notifications: tuple[Notification, ...] = ()
    if (bucket := settings.buckets.get(destination.name)) is not None:
        notifications = bucket.notify
    elif (remote := settings.remote_buckets.get(destination.name)) is not None:
        notifications, key_begin = remote.notify, remote.prefix + key_begin
    for notification in notifications:
        is_created = any(event.startswith("s3:ObjectCreated:") for event in notification.events)
        if is_created and key_begin.startswith(notification.prefix) and key_end.endswith(notification.suffix):
            yield notification.function


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
        """Report what is wrong with one destination."""
        if destination.kind == "http":
            self._check_address(destination, path)
        elif destination.kind == "function":
            self._check_function(destination, path)
        elif is_fifo(destination):
            found = f'"{destination}", which is FIFO'
            self._findings.add(path, found=found, allowed="standard queues and topics, as on Lambda")
        elif destination.kind in ("table", "bucket"):
            self._check_store(destination, path)

    def _check_store(self, destination: Destination, path: KeyPath) -> None:
        names = self._names(f"{destination.kind}s")
        if destination.name not in names:
            existing = [f"{destination.kind}:{name}" for name in names]
            allowed = one_of(str(destination), existing, what=f"{destination.kind}s of this file")
            self._findings.add(path, found=f'"{destination}"', allowed=allowed)

    def _check_function(self, destination: Destination, path: KeyPath) -> None:
        name, _ = function_of(destination)
        if name == path[1]:
            allowed = "another function: a function cannot be its own destination"
            self._findings.add(path, found=f'"{destination}"', allowed=allowed)
        elif name not in self._names("functions") and not self._is_arn(path):
            existing = [f"function:{one}" for one in self._names("functions") if one != path[1]]
            allowed = one_of(str(destination), existing, what="functions of this file")
            self._findings.add(path, found=f'"{destination}"', allowed=f"{allowed}; name any other function by its ARN")

    def _check_address(self, destination: Destination, path: KeyPath) -> None:
        address = address_of(destination)
        if address is None:
            self._findings.add(path, found=f'"{destination}"', allowed="a URL with a host name")
        elif address.username is not None or address.password is not None:
            allowed = "a URL without them; set server.webhook_secret to sign the requests instead"
            self._findings.add(path, found="a URL with a user name or password (not shown)", allowed=allowed)
        elif address.scheme == "http" and not self._plain_http and not is_loopback(address.hostname or ""):
            allowed = (
                "https:// for other machines, or webhooks_plain_http = true in [server] if no one can read the "
                "traffic on the network between the machines"
            )
            self._findings.add(path, found=f'"{destination}"', allowed=allowed)
