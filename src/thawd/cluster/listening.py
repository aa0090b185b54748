"""The port for other machines of the cluster: runs the requests that they forward, takes summaries, answers questions.

Guarantees:
- nothing is accepted from a connection before its other side has proved that it has the cluster's key;
- a forwarded request runs here or is refused; it is never forwarded again;
- when the other machine ends the connection, because its caller is gone or it has died, the request is ended as that of
  a caller that is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from thawd import errors
from thawd.cluster import channel, handshake
from thawd.cluster.channel import Channel
from thawd.cluster.credentials import Credentials as Issuer
from thawd.cluster.credentials import CredentialsError
from thawd.cluster.links import Credentials
from thawd.cluster.machine_index import Summary
from thawd.errors import NotMemberError, ServiceException, ThawdError, unexpected
from thawd.invocation import Invocation, Result, StartKind
from thawd.wire.response_stream import ResponseStream

_HANDSHAKE_S = 5.0
_OF_AN_ANSWER = {"type": "application/octet-stream", "version": ""}
_MOST_UNKNOWN = 100  # connections that have not proved yet that they have the key


class Host:
    """What the port needs from the rest of the server. Subclasses implement it."""

    def why_refused(self, invocation: Invocation, identity: str, *, may_wait: bool) -> str | None:
        """Return why this machine does not run a forwarded request now; None: it does.

        Args:
            invocation: the request.
            identity: identifier of the version that the other machine wants to run (`thawd.cluster.identity`).
            may_wait: whether the request may wait here for an environment, because it cannot run where it entered.
        """
        raise NotImplementedError

    async def run(self, invocation: Invocation) -> Result:
        """Run a forwarded request here.

        Raises:
            ThawdError: as `Dispatcher.invoke`.
        """
        raise NotImplementedError

    async def tell(self, question: str, arguments: Mapping[str, str]) -> bytes:
        """Return the answer to a question of another machine (`thawd.cluster.questions`).

        Raises:
            ThawdError: it cannot be answered.
        """
        raise NotImplementedError

    def tell_parts(self, question: str) -> AsyncGenerator[bytes] | None:
        """Return the answer to a question whose answer is sent in parts; None: it is no such question."""
        return None

    def heard(self, machine: str, summary: Summary) -> None:
        """Use the summary of another machine."""
        raise NotImplementedError

    def lost(self, machine: str) -> None:
        """The connection over which another machine sent its summaries has ended."""
        raise NotImplementedError


class Listener:
    """The port.

    Args:
        credentials: this machine's name, the key, TLS.
        machines: names of the other machines; none with another name is let in.
        host: runs requests.
        issuer: lets machines join; then each machine must have a certificate with its name. None: none can join.

    Attributes:
        machines: may be replaced at any time.
    """

    def __init__(
        self, credentials: Credentials, machines: frozenset[str], host: Host, issuer: Issuer | None = None
    ) -> None:
        self.issuer = issuer
        self.credentials = credentials
        self.machines = machines
        self.host = host
        self._server: asyncio.Server | None = None
        self.open: set[AcceptedLink] = set()

    async def start(self, opened: socket.socket) -> None:
        """Begin to accept connections at a socket that listens."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: AcceptedLink(self), sock=opened, ssl=self.credentials.accepting)

    def tick(self) -> None:
        """Send a sign of life for each request that runs; call it every TICK_S."""
        for link in list(self.open):
            link.tick()

    def close(self) -> None:
        """Accept no connections any more, and end those that are open."""
        if self._server is not None:
            self._server.close()
        for link in list(self.open):
            link.close()


class AcceptedLink(Channel):
    """A connection that another machine has opened."""

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self._listener = listener
        self._nonce = handshake.new_nonce()
        self._machine = ""
        self._running: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._images: frozenset[str] = frozenset()
        self._sends_summaries = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the proof that the other side has the key."""
        super().connection_made(transport)
        unknown = sum(not link.is_trusted for link in self._listener.open)
        self._listener.open.add(self)
        if unknown >= _MOST_UNKNOWN:
            self.close()
            return
        self._timer = asyncio.get_running_loop().call_later(_HANDSHAKE_S, self._close_stranger)
        issuer = self._listener.issuer
        about = {} if issuer is None else {"authority": issuer.authority}
        oldest, newest = self._listener.credentials.protocols
        self.send(channel.CHALLENGE, {"protocol": oldest, "newest": newest, "nonce": self._nonce, **about})

    def _close_stranger(self) -> None:
        if not self.is_trusted:
            self.close()

    def on_frame(self, kind: int, head: Any, body: bytes) -> None:
        """Handle a frame of the other machine."""
        if not self.is_trusted:
            if kind == channel.JOIN and self._listener.issuer is not None:
                self._let_join(self._listener.issuer, head)
            else:
                self._check_proof(kind, head)
        elif kind == channel.INVOKE and self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._answer(head, body))
        elif kind == channel.ASK and self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._tell(head))
        elif kind == channel.SUMMARY:
            self._sends_summaries = True
            self._listener.host.heard(self._machine, self._summary(head))
        else:
            self.close()

    def _let_join(self, issuer: Issuer, head: Any) -> None:
        try:
            granted = issuer.grant(str(head["token"]), str(head["request"]), str(head["name"]), now=time.time())
        except CredentialsError as error:
            self.send(channel.REFUSED, {"why": error.message})
        else:
            self.send(channel.JOINED, msgspec.structs.asdict(granted))

    def _check_proof(self, kind: int, head: Any) -> None:
        own = self._listener.credentials
        name, nonces = str(head["name"]), (self._nonce, str(head["nonce"]))
        names = (own.own, name)
        # A machine with an earlier thawd has no choice, and names no version.
        protocol = int(head.get("protocol", own.protocols.oldest))
        wanted = handshake.mac(own.key, "asks", nonces=nonces, names=names, protocol=protocol)
        is_right = kind == channel.PROOF and handshake.is_mac(head["mac"], wanted)
        is_right = is_right and own.protocols.oldest <= protocol <= own.protocols.newest
        if not is_right or head["to"] != own.own or name not in self._listener.machines:
            self.close()
            return
        if self._listener.issuer is not None and not self._is_certified(name):
            self.close()
            return
        self.is_trusted, self._machine, self.protocol = True, name, protocol
        if self._timer is not None:
            self._timer.cancel()
        self.send(
            channel.WELCOME, {"mac": handshake.mac(own.key, "answers", nonces=nonces, names=names, protocol=protocol)}
        )

    def _is_certified(self, name: str) -> bool:
        assert self._transport is not None
        return handshake.is_certified(self._transport.get_extra_info("ssl_object"), name)

    def _summary(self, head: Mapping[str, Any]) -> Summary:
        """The summary in a frame. A frame without images says that they are those of the frame before."""
        images = head.get("images")
        if images is not None:
            self._images = frozenset(map(str, images))
        fields = {name: value for name, value in head.items() if name != "images"}
        return replace(msgspec.convert(fields, Summary), images=self._images)

    async def _answer(self, head: Mapping[str, Any], body: bytes) -> None:
        try:
            invocation, identity = invocation_of(head, body)
            why = self._listener.host.why_refused(invocation, identity, may_wait=bool(head["may_wait"]))
            if why is not None:
                self.send(channel.REFUSED, {"why": why})
                return
            result = await self._run(invocation)
            fields = {name: getattr(result, name) for name in (*_RESULT_FIELDS, *_LATER_FIELDS)}
            tail = result.log_tail.decode("latin-1")
            self.send(
                channel.RESULT,
                {**fields, "log_tail": tail, "trace_id": invocation.trace_id, "start_kind": str(result.start_kind)},
                result.payload,
            )
        except NotMemberError as error:
            self.send(channel.REFUSED, {"why": error.message})  # it has not begun
        except ThawdError as error:
            self.send(channel.ERROR, error_head(error))
        except Exception as error:  # a bug must not leave the other machine waiting
            self.send(channel.ERROR, error_head(ServiceException(unexpected(error))))
        finally:
            self._running = None

    async def _tell(self, head: Mapping[str, Any]) -> None:
        try:
            question = str(head["question"])
            arguments = {str(name): str(value) for name, value in head["arguments"].items()}
            if (parts := self._listener.host.tell_parts(question)) is not None:
                async with contextlib.aclosing(parts):
                    async for part in parts:
                        self.send(channel.PART, _OF_AN_ANSWER, part)
                        await self.sent()
                self.send(channel.TOLD, None)
            else:
                self.send(channel.TOLD, None, await self._listener.host.tell(question, arguments))
        except ThawdError as error:
            self.send(channel.ERROR, error_head(error))
        except Exception as error:  # a bug must not leave the other machine waiting
            self.send(channel.ERROR, error_head(ServiceException(unexpected(error))))
        finally:
            self._running = None

    async def _run(self, invocation: Invocation) -> Result:
        stream = invocation.stream
        if stream is None:
            return await self._listener.host.run(invocation)
        running = asyncio.get_running_loop().create_task(self._listener.host.run(invocation))
        running.add_done_callback(lambda _: stream.end())
        try:
            if await stream.begun():
                about = {"type": stream.content_type, "version": stream.executed_version}
                self.send(channel.PART, about)
                while (data := await stream.take()) is not None:
                    self.send(channel.PART, about, data)
                    await self.sent()
            return await running
        finally:
            running.cancel()

    def tick(self) -> None:
        """Send a sign of life if a request runs."""
        if self._running is not None:
            self.send(channel.ALIVE, None)

    def on_lost(self) -> None:
        """End the request that runs for the other machine."""
        self._listener.open.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._running is not None:
            self._running.cancel()
        if self._sends_summaries:
            self._listener.host.lost(self._machine)


_INVOCATION_FIELDS = (
    "function",
    "request_id",
    "client_context",
    "trace_id",
    "want_log_tail",
    "asynchronous",
    "qualifier",
    "alone",
)
_RESULT_FIELDS = (
    "function_error",
    "executed_version",
    "duration_ms",
    "init_ms",
    "prepare_ms",
    "content_type",
    "batch_size",
)
# Fields that machines of earlier versions do not send.
_LATER_FIELDS = ("memory_mb", "peak_mib", "is_restored", "logged")
_ERRORS: dict[str, type[ThawdError]] = {
    kind.__name__: kind
    for kind in (
        errors.InvalidParameterValueException,
        errors.InvalidRequestContentException,
        errors.ResourceNotFoundException,
        errors.ResourceConflictException,
        errors.ResourceNotReadyException,
        errors.RecursiveInvocationException,
        errors.TooManyRequestsException,
        errors.ServiceException,
    )
}


def invocation_head(invocation: Invocation, identity: str, *, now_s: float, may_wait: bool = False) -> dict[str, Any]:
    """Return the head of the frame with which a request is forwarded. Its deadline is sent as the time that is left."""
    fields = {name: getattr(invocation, name) for name in _INVOCATION_FIELDS}
    limit = None if invocation.stream is None else invocation.stream.limit_bytes
    return {
        **fields,
        "left_s": invocation.queue_deadline - now_s,
        "limit_bytes": limit,
        "identity": identity,
        "may_wait": may_wait,
    }


def invocation_of(head: Mapping[str, Any], body: bytes) -> tuple[Invocation, str]:
    """Return the request in a frame, and the identifier of the version that is to run it.

    Raises:
        KeyError, TypeError, ValueError: the frame has no such request.
    """
    limit = head["limit_bytes"]
    invocation = Invocation(
        **{name: head[name] for name in _INVOCATION_FIELDS},
        payload=body,
        queue_deadline=time.monotonic() + float(head["left_s"]),
        stream=None if limit is None else ResponseStream(limit_bytes=int(limit)),
        forwarded=True,
    )
    return invocation, str(head["identity"])


def result_of(head: Mapping[str, Any], body: bytes) -> Result:
    """Return the result in a frame."""
    later = {name: head[name] for name in _LATER_FIELDS if name in head}
    if later.get("logged") is not None:
        error_type, message = map(str, later["logged"])
        later["logged"] = (error_type, message)
    return Result(
        **{name: head[name] for name in _RESULT_FIELDS},
        **later,
        payload=body,
        log_tail=str(head["log_tail"]).encode("latin-1"),
        start_kind=StartKind(head["start_kind"]),
    )


def error_head(error: ThawdError) -> dict[str, Any]:
    """Return the head of the frame that says why a request was not answered."""
    kind = next((name for name, each in _ERRORS.items() if isinstance(error, each)), "ServiceException")
    return {"kind": kind, "message": error.message, "reason": error.reason}


def error_of(head: Mapping[str, Any]) -> ThawdError:
    """Return the error in a frame."""
    kind = _ERRORS.get(str(head["kind"]), ServiceException)
    return kind(str(head["message"]), reason=head["reason"])
