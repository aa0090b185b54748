"""AWS Lambda's Extensions API: extensions can get an event when an invocation begins, and when the environment ends.

An external extension is an executable file in the folder ``extensions/`` of the function's code or of a layer. The
module `environments.external_extensions` starts it. An internal extension is part of the function's own process. Both
kinds register with this API, then ask the API for one event after another.

Source: AWS Lambda developer guide, "Using the Lambda Extensions API to create extensions".
"""

from __future__ import annotations

import enum
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from thawd.environments.runtime_api.http_server import HttpConnection, Request
from thawd.resources import ACCOUNT_ID

MAX_EXTENSIONS = 10
_EVENTS = ("INVOKE", "SHUTDOWN")
_OK = b'{"status":"OK"}\n'
_encode = msgspec.json.Encoder().encode


class ExtensionState(enum.StrEnum):
    """The state of an extension; the names are AWS's."""

    STARTED = "Started"
    REGISTERED = "Registered"
    READY = "Ready"
    RUNNING = "Running"
    INIT_ERROR = "InitError"
    EXIT_ERROR = "ExitError"


_MAY_ASK = (ExtensionState.REGISTERED, ExtensionState.READY, ExtensionState.RUNNING)


class Extension:
    """One extension.

    Attributes:
        name: the name of its file (external), or the one that it registered with (internal).
        external: whether it has its own process.
        identifier: a UUID that the extension gets when it registers, and sends with each later request.
        state: its state.
        events: the kinds of events that it gets.
        parked: its unanswered request for the next event; None when there is none.
        queue: events that it has not got yet.
    """

    __slots__ = ("events", "external", "identifier", "name", "parked", "queue", "state")

    def __init__(self, name: str, *, external: bool) -> None:
        self.name = name
        self.external = external
        self.identifier = str(uuid.uuid4())
        self.state = ExtensionState.STARTED
        self.events: frozenset[str] = frozenset()
        self.parked: Request | None = None
        self.queue: deque[bytes] = deque()

    @property
    def is_waiting(self) -> bool:
        """Whether the extension has handled all its events and waits for the next one."""
        return self.state is ExtensionState.READY and not self.queue

    def send(self, event: bytes) -> None:
        """Send an event to the extension, now or when it next asks for one."""
        self.queue.append(event)
        self.hand_out()

    def hand_out(self) -> None:
        """If the extension has asked for its next event and one is in the queue, answer with that event."""
        if self.parked is not None and self.queue:
            parked, self.parked = self.parked, None
            self.state = ExtensionState.RUNNING
            headers = f"Content-Type: application/json\r\nLambda-Extension-Event-Identifier: {uuid.uuid4()}\r\n"
            parked.answer(200, self.queue.popleft(), headers=headers.encode())


class ExtensionsApi:
    """The extensions of one environment.

    Attributes:
        on_change: called when an extension has asked for its next event.
        on_registered: called when an extension has registered.
        on_fault: called with error type and message when an extension reports that it cannot continue.
        connections: the connections of extensions.
    """

    def __init__(self, *, function: str, number: str, handler: str, external: list[str]) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.on_registered: Callable[[], None] = lambda: None
        self.on_fault: Callable[[str, str], None] = lambda error_type, message: None
        self.connections: set[HttpConnection] = set()
        self._about = {"functionName": function, "functionVersion": number, "handler": handler}
        self._all = {name: Extension(name, external=True) for name in external}
        self._by_identifier = {extension.identifier: extension for extension in self._all.values()}
        self._is_open = True

    def all(self) -> list[Extension]:
        """Return all extensions, registered or not."""
        return list(self._all.values())

    def all_waiting(self) -> bool:
        """Return whether every extension has asked for its next event."""
        return all(extension.is_waiting for extension in self._all.values())

    def all_registered(self) -> bool:
        """Return whether every external extension has registered; internal ones are known only once they register."""
        return all(extension.state is not ExtensionState.STARTED for extension in self._all.values())

    def close_registration(self) -> None:
        """The init phase is over: internal extensions cannot register any more."""
        self._is_open = False

    def invoke(self, event: dict[str, Any]) -> None:
        """An invocation begins: send `event` to the extensions that have registered for INVOKE."""
        self._send_all("INVOKE", event)

    def shut_down(self, reason: str, *, deadline_ms: int) -> None:
        """The environment ends: send a SHUTDOWN event to the extensions that have registered for it.

        Args:
            reason: ``spindown``, ``timeout`` or ``failure``.
            deadline_ms: when extensions are killed, milliseconds since 1970.
        """
        self._send_all("SHUTDOWN", {"eventType": "SHUTDOWN", "shutdownReason": reason, "deadlineMs": deadline_ms})

    def _send_all(self, kind: str, event: dict[str, Any]) -> None:
        encoded = None
        for extension in self._all.values():
            if kind in extension.events:
                encoded = encoded or _encode(event)
                extension.send(encoded)

    def handle(self, request: Request, operation: str) -> None:
        """Answer a request whose path ends in `operation`."""
        operations = {
            "register": ("POST", self._register),
            "event/next": ("GET", self._next),
            "init/error": ("POST", self._init_error),
            "exit/error": ("POST", self._exit_error),
        }
        if operation not in operations:
            request.answer(404, b"404 page not found\n", headers=b"Content-Type: text/plain\r\n")
            return
        method, act = operations[operation]
        if request.method != method:
            request.answer(405, headers=f"Allow: {method}\r\n".encode())
            return
        act(request)

    def _register(self, request: Request) -> None:
        name = request.header(b"lambda-extension-name")
        if not name:
            refuse(request, 403, "Extension.InvalidExtensionName", "Empty extension name")
            return
        try:
            events = msgspec.json.decode(bytes(request.body), type=_Registration).events
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            refuse(request, 403, "InvalidRequestFormat", str(error))
            return
        extension = self._all.get(name)
        external = extension is not None and extension.external
        allowed = _EVENTS if external else _EVENTS[:1]
        for event in events:
            if event not in allowed:
                kind_name = "external" if external else "internal"
                why = f"{event}: an {kind_name} extension can register only for {' and '.join(allowed)}"
                refuse(request, 403, "Extension.InvalidEventType", why)
                return
        if extension is None:
            extension = self._add_internal(request, name)
            if extension is None:
                return
        elif extension.state is not ExtensionState.STARTED:
            refuse(request, 403, "Extension.InvalidExtensionState", "Extension with this name already registered")
            return
        extension.events = frozenset(events)
        extension.state = ExtensionState.REGISTERED
        if external:
            self.connections.add(request.connection)
        self._answer_registration(request, extension)
        self.on_registered()

    def _add_internal(self, request: Request, name: str) -> Extension | None:
        if not self._is_open:
            refuse(request, 403, "Extension.RegistrationClosed", "Extension registration closed already")
            return None
        if len(self._all) >= MAX_EXTENSIONS:
            refuse(request, 403, "Extension.TooManyExtensions", f"Extension limit ({MAX_EXTENSIONS}) reached")
            return None
        extension = self._all[name] = Extension(name, external=False)
        self._by_identifier[extension.identifier] = extension
        return extension

    def _answer_registration(self, request: Request, extension: Extension) -> None:
        about = self._about
        if "accountid" in request.header(b"lambda-extension-accept-feature").lower():
            about = {**about, "accountId": ACCOUNT_ID}
        headers = f"Content-Type: application/json\r\nLambda-Extension-Identifier: {extension.identifier}\r\n"
        request.answer(200, _encode(about), headers=headers.encode())

    def _next(self, request: Request) -> None:
        extension = self._known(request)
        if extension is None:
            return
        if extension.state not in _MAY_ASK:
            self._refuse_transition(request, extension, ExtensionState.READY)
            return
        replaced, extension.parked = extension.parked, request
        if replaced is not None:
            self._refuse_transition(replaced, extension, ExtensionState.READY)
        if extension.external:
            self.connections.add(request.connection)
        request.on_lost = lambda: _unpark(extension, request)
        extension.state = ExtensionState.READY
        extension.hand_out()
        self.on_change()

    def _init_error(self, request: Request) -> None:
        self._failed(request, ExtensionState.INIT_ERROR, (ExtensionState.REGISTERED,))

    def _exit_error(self, request: Request) -> None:
        self._failed(request, ExtensionState.EXIT_ERROR, _MAY_ASK)

    def _failed(self, request: Request, state: ExtensionState, allowed: tuple[ExtensionState, ...]) -> None:
        extension = self._known(request)
        if extension is None:
            return
        error_type = request.header(b"lambda-extension-function-error-type")
        if not error_type:
            why = "Lambda-Extension-Function-Error-Type not found"
            refuse(request, 403, "Extension.MissingHeader", why)
            return
        if extension.state not in allowed:
            self._refuse_transition(request, extension, state)
            return
        extension.state = state
        request.answer(202, _OK)
        self.on_fault(error_type, f"the extension {extension.name} reported an error")

    def _known(self, request: Request) -> Extension | None:
        """Return the extension that sent the request; None after answering 403: its identifier is missing or wrong."""
        identifier = request.header(b"lambda-extension-identifier")
        if not identifier:
            why = "Missing Lambda-Extension-Identifier header"
            refuse(request, 403, "Extension.MissingExtensionIdentifier", why)
            return None
        try:
            identifier = str(uuid.UUID(identifier))
        except ValueError:
            refuse(request, 403, "Extension.InvalidExtensionIdentifier", "Invalid Lambda-Extension-Identifier")
            return None
        extension = self._by_identifier.get(identifier)
        if extension is None:
            refuse(request, 403, "Extension.UnknownExtensionIdentifier", f"Unknown extension {identifier}")
        return extension

    def _refuse_transition(self, request: Request, extension: Extension, wanted: ExtensionState) -> None:
        message = (
            f"State transition from {extension.state} to {wanted} failed for extension {extension.name}. "
            "Error: State transition is not allowed"
        )
        refuse(request, 403, "Extension.InvalidExtensionState", message)


class _Registration(msgspec.Struct):
    events: list[str] = []


def _unpark(extension: Extension, request: Request) -> None:
    if extension.parked is request:
        extension.parked = None


def refuse(request: Request, status: int, error_type: str, message: str) -> None:
    """Answer `request` with an error document in the Runtime API's format."""
    request.answer(status, _encode({"errorMessage": message, "errorType": error_type}) + b"\n")
