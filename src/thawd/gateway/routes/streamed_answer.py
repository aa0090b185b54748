"""Sends an answer to the client part by part, while the function produces it, if the function streams it.

Most functions do not stream: for their invocations, nothing here costs more than an object. When the first part of an
answer arrives from the function's process, a task begins that sends the parts on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from thawd.gateway.http import Receive, Send
from thawd.gateway.routes.payload_formats import WITHOUT_BODY, MalformedResponseError
from thawd.gateway.routes.streamed_head import Prelude
from thawd.invocation import Invocation
from thawd.streaming import HTTP_RESPONSE
from thawd.wire.response_stream import ResponseStream


class StreamedAnswer:
    """The answer of one invocation, if the function streams it.

    Args:
        invocation: gets the stream; it must not have begun.
        send: sends to the client.
        method: the request's method. The answer to HEAD has no body.
        fail: answers the client that the function's answer is malformed.
        receive: ASGI's callable; the request's body has been received.

    Attributes:
        stream: the parts of the answer.
    """

    __slots__ = ("_fail", "_is_head", "_receive", "_send", "_sending", "_watching", "stream")

    def __init__(
        self,
        invocation: Invocation,
        send: Send,
        *,
        method: str,
        fail: Callable[[], Awaitable[None]],
        receive: Receive,
    ) -> None:
        self.stream = invocation.stream = ResponseStream()
        self.stream.on_begin = self._begin
        self._send = send
        self._is_head = method == "HEAD"
        self._fail = fail
        self._receive = receive
        self._sending: asyncio.Task[bool] | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the function has sent a part."""
        return self._sending is not None

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._sending = loop.create_task(self._pass_on())
        self._watching = loop.create_task(self._watch())

    async def _watch(self) -> None:
        """Note when the client has gone, and tell the function, if it can be told."""
        while (await self._receive())["type"] == "http.request":
            pass
        self.stream.gone()

    async def end(self, *, is_complete: bool) -> None:
        """Wait until all parts have been sent, because the invocation has ended.

        Args:
            is_complete: whether the function has succeeded. If not, the answer's end is not sent, so the client notices
                that the answer is incomplete.
        """
        self.stream.end()
        self._stop_watching()
        if self._sending is not None and await self._sending and is_complete:
            await self._send({"type": "http.response.body"})

    async def drop(self) -> None:
        """Send nothing more, because the request is cancelled or the invocation could not be run to its end."""
        self.stream.end()
        self._stop_watching()
        if self._sending is not None and not self._sending.done():
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)

    def _stop_watching(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None

    async def _pass_on(self) -> bool:
        """Send the parts; returns whether the end of the answer is still to be sent."""
        try:
            return await self._send_parts()
        except Exception:
            await self._take_rest()
            raise

    async def _send_parts(self) -> bool:
        prelude = Prelude()
        body: bytes | None = b""
        if self.stream.content_type == HTTP_RESPONSE:
            body = await self._read_prelude(prelude)
            if body is None:
                await self._fail()
                await self._take_rest()
                return False
        else:
            prelude.headers = [(b"content-type", self.stream.content_type.encode())]
        headers = prelude.headers
        has_body = prelude.status not in WITHOUT_BODY
        if has_body and prelude.body_bytes is not None:
            headers = [*headers, (b"content-length", b"%d" % prelude.body_bytes)]
        await self._send({"type": "http.response.start", "status": prelude.status, "headers": headers})
        has_body = has_body and not self._is_head
        left = prelude.body_bytes if has_body else None
        if not has_body:
            self.stream.answered_s = time.monotonic()
        while body is not None:
            if body and has_body:
                if left is not None:
                    left -= len(body)
                    if left < 0:  # more than the handler has announced
                        await self._take_rest()
                        return False
                await self._send({"type": "http.response.body", "body": body, "more_body": True})
                if left == 0:
                    self.stream.answered_s = time.monotonic()
            body = await self.stream.take()
        return not left

    async def _take_rest(self) -> None:
        """Drop the other parts, so that the function's writes do not wait."""
        while await self.stream.take() is not None:
            pass

    async def _read_prelude(self, prelude: Prelude) -> bytes | None:
        """Read the answer up to the end of its prelude (status and headers).

        Returns the first bytes of the body, or None if the prelude is missing or malformed.
        """
        try:
            while (data := await self.stream.take()) is not None:
                if (body := prelude.feed(data)) is not None:
                    return body
        except MalformedResponseError:
            pass
        return None
