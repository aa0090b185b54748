"""A client of the Debug Adapter Protocol, as editors have one: attaches to debugpy over a socket.

Source: "Debug Adapter Protocol", the base protocol and the types of requests and events.
"""

from __future__ import annotations

import itertools
import json
import socket
from pathlib import Path
from typing import Any, Self

_PATIENCE_S = 300.0


class DebugClient:
    """One debugging session. As a context manager, it detaches at the end.

    Args:
        port: where debugpy listens, on loopback.
    """

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S)
        self._file = self._socket.makefile("rb")
        self._numbers = itertools.count(1)
        self._events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.request("disconnect", terminateDebuggee=False)
        except (AssertionError, OSError):
            pass  # the debugged process has ended
        self._file.close()
        self._socket.close()

    def attach(self, breakpoints: dict[Path, list[int]]) -> list[bool]:
        """Attach with breakpoints at these lines of files. Returns for each whether debugpy could set it."""
        self.request("initialize", adapterID="thawd", clientID="test", pathFormat="path", linesStartAt1=True)
        attached = self._send("attach", {"justMyCode": True})  # answered only after configurationDone
        self.event("initialized")
        verified: list[bool] = []
        for file, lines in breakpoints.items():
            body = self.request(
                "setBreakpoints", source={"path": str(file)}, breakpoints=[{"line": line} for line in lines]
            )
            verified += [each["verified"] for each in body["breakpoints"]]
        self.request("configurationDone")
        self._answer(attached)
        return verified

    def stopped(self) -> tuple[int, dict[str, Any]]:
        """Wait until a thread stops. Returns the thread's id and the uppermost frame."""
        thread: int = self.event("stopped")["threadId"]
        return thread, self.request("stackTrace", threadId=thread, levels=1)["stackFrames"][0]

    def variables(self, frame: dict[str, Any]) -> dict[str, str]:
        """The local variables of a frame, as text."""
        scopes = self.request("scopes", frameId=frame["id"])["scopes"]
        found = self.request("variables", variablesReference=scopes[0]["variablesReference"])["variables"]
        return {each["name"]: each["value"] for each in found}

    def request(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a request and return the body of its answer."""
        return self._answer(self._send(command, arguments))

    def event(self, name: str) -> dict[str, Any]:
        """Return the body of the next event with this name."""
        while True:
            for index, event in enumerate(self._events):
                if event["event"] == name:
                    body: dict[str, Any] = self._events.pop(index).get("body", {})
                    return body
            message = self._receive()
            if message["type"] == "event":
                self._events.append(message)

    def _send(self, command: str, arguments: dict[str, Any]) -> int:
        number = next(self._numbers)
        text = json.dumps({"seq": number, "type": "request", "command": command, "arguments": arguments}).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(text), text))
        return number

    def _answer(self, number: int) -> dict[str, Any]:
        while True:
            message = self._receive()
            if message["type"] == "event":
                self._events.append(message)
            elif message["type"] == "response" and message["request_seq"] == number:
                assert message["success"], message
                body: dict[str, Any] = message.get("body") or {}
                return body

    def _receive(self) -> dict[str, Any]:
        length = 0
        while (line := self._file.readline()) not in (b"\r\n", b""):
            length = int(line.partition(b":")[2])
        assert length, "the debug adapter has closed the connection"
        message: dict[str, Any] = json.loads(self._file.read(length))
        return message
