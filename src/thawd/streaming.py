"""Response streaming: handlers that send their answer part by part.

This module uses only the standard library, and supports Python 3.9.

::

    from thawd import streaming

    @streaming.handler
    def handler(event, stream, context):
        stream.set_status(200, {"content-type": "text/plain"})
        for word in words(event):
            stream.write(word)

    @streaming.handler
    def handler(event, context):
        yield from words(event)

Both forms may be ``async def``. A generator needs no decorator: a function that contains ``yield`` streams its answer.

When a test, or a runtime without streaming, calls such a handler like an ordinary one, the call returns the whole
answer.

Source: AWS Lambda developer guide, "Response streaming for Lambda functions". Status, headers and cookies are sent
before the body, as a prelude in the format that AWS's runtimes write.
"""

import json
import threading
from typing import Any, Callable, Dict, Iterable, List, Optional, Union

HTTP_RESPONSE = "application/vnd.awslambda.http-integration-response"
"""Content type of an answer with a prelude: status, headers and cookies as JSON, then `SEPARATOR`, then the body."""
SEPARATOR = b"\0" * 8
BYTES = "application/octet-stream"
"""Content type of the answer if the handler does not set one."""

TEXT = "text/plain; charset=utf-8"

_PART_BYTES = 1 << 16
Data = Union[str, bytes, bytearray, memoryview]


class StreamError(Exception):
    """The handler called a method of its stream too late or in the wrong order; the message says what to do."""


class Stream:
    """The stream to which a streaming handler writes its answer. Any thread may write; a lock serialises the calls.

    Attributes:
        content_type: content type of the answer; `HTTP_RESPONSE` after `set_status`.
        prelude: status, headers and cookies that were passed to `set_status`; None before that call.
    """

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self.content_type = BYTES
        self.prelude: Optional[Dict[str, Any]] = None
        self._send = send
        self._begun = False
        self._closed = False
        self._lock = threading.Lock()

    @property
    def begun(self) -> bool:
        """Whether a part was written."""
        return self._begun

    def set_status(
        self, status: int, headers: Optional[Dict[str, str]] = None, cookies: Optional[Iterable[str]] = None
    ) -> None:
        """Set HTTP status, headers and ``Set-Cookie`` values of the answer. Call it before the first `write`.

        Args:
            status: 200 to 599.
            headers: values by name.
            cookies: for example ``["a=1; Path=/"]``.

        Raises:
            StreamError: a part was written already.
            ValueError: `status` is out of range.
            TypeError: an argument has the wrong type.
        """
        if not isinstance(status, int) or isinstance(status, bool):
            raise TypeError("the status must be an int, not a %s" % type(status).__name__)
        if not 200 <= status <= 599:
            raise ValueError("the status is %d; it must be from 200 to 599" % status)
        prelude: Dict[str, Any] = {"statusCode": status, "headers": _texts(headers or {})}
        listed = list(cookies or ())
        if not all(isinstance(cookie, str) for cookie in listed):
            raise TypeError("each cookie must be a str")
        if listed:
            prelude["cookies"] = listed
        with self._lock:
            self._before_first("the status")
            self.prelude = prelude
            self.content_type = HTTP_RESPONSE

    def set_content_type(self, content_type: str) -> None:
        """Set the content type of an answer without status and headers. Call it before the first `write`.

        Raises:
            StreamError: a part was written already, or `set_status` was called; its `headers` contain the type then.
            ValueError: `content_type` is not 1 to 256 printable ASCII characters.
        """
        if not 1 <= len(content_type) <= 256 or not (content_type.isascii() and content_type.isprintable()):
            raise ValueError("the content type must be 1 to 256 printable ASCII characters, for example text/plain")
        with self._lock:
            self._before_first("the content type")
            if self.prelude is not None:
                raise StreamError("set_status was called before: put the content type into its headers argument")
            self.content_type = content_type

    def write(self, data: Data) -> None:
        """Send a part of the answer. The call blocks while the client reads too slowly.

        Args:
            data: bytes, or text, which is sent as UTF-8.

        Raises:
            StreamError: the handler has ended.
            TypeError: `data` is neither text nor bytes.
        """
        if not isinstance(data, (str, bytes, bytearray, memoryview)):
            raise TypeError("a part of the answer must be str or bytes, not a %s" % type(data).__name__)
        view = memoryview(data.encode() if isinstance(data, str) else data).cast("B")
        with self._lock:
            if self._closed:
                raise StreamError("the handler has ended, so nothing more can be written; write before it ends")
            self._begin()
            for at in range(0, len(view), _PART_BYTES):
                self._send(bytes(view[at : at + _PART_BYTES]))

    def flush(self) -> None:
        """Send status and headers now, before the first part. Parts need no flush: `write` sends them immediately."""
        self.write(b"")

    def close(self) -> None:
        """Complete the answer. The runtime calls this when the handler returns."""
        with self._lock:
            if not self._closed:
                self._begin()
                self._closed = True

    def abandon(self) -> None:
        """Send nothing more, because the handler has failed."""
        with self._lock:
            self._closed = True

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            if self.prelude is not None:
                self._send(json.dumps(self.prelude).encode() + SEPARATOR)

    def _before_first(self, what: str) -> None:
        if self._begun or self._closed:
            raise StreamError("set %s before the first write: part of the answer has been sent" % what)


def _texts(headers: Dict[str, str]) -> Dict[str, str]:
    if not isinstance(headers, dict):
        raise TypeError("headers must be a dict that maps names to values, not a %s" % type(headers).__name__)
    return {str(name): str(value) for name, value in headers.items()}


def _run(awaitable: Any) -> Any:
    import asyncio  # only for such handlers, because the import takes 20 to 40 ms

    async def value() -> Any:
        return await awaitable

    return asyncio.run(value())


async def pass_each(values: Any, take: Callable[[Any], None]) -> None:
    """Call `take` with each value of an asynchronous iterator, and close the iterator, all in one task.

    Otherwise the event loop would close an iterator that `take` has failed for, during the next invocation.
    """
    try:
        async for value in values:
            take(value)
    finally:
        close = getattr(values, "aclose", None)
        if close is not None:
            await close()


class StreamingHandler:
    """A handler that streams its answer, created by the decorator `handler`.

    Attributes:
        streams: always True; the runtime recognises a streaming handler by this attribute.
        finish: runs an awaitable of an ``async def`` handler to its end. The runtime uses one event loop for all.
    """

    streams = True
    finish: Callable[[Any], Any] = staticmethod(_run)

    def __init__(self, function: Callable[..., Any], *, text: bool = False) -> None:
        """Make a streaming handler of `function`; `text`: the content type is plain text if the first part is text."""
        self.__wrapped__ = function
        self._text = text
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = getattr(function, "__doc__", None)
        self._takes_stream = _positional(function) >= 3

    def run(self, event: Any, stream: Stream, context: Any) -> None:
        """Run the function and write what it returns: nothing for None, else one part or an iterator of parts."""
        function = self.__wrapped__
        answer = function(event, stream, context) if self._takes_stream else function(event, context)
        if hasattr(type(answer), "__await__"):
            answer = self.finish(answer)
        if answer is None:
            return
        if isinstance(answer, (str, bytes, bytearray, memoryview)):
            self._write(stream, answer)
        elif hasattr(answer, "__aiter__"):
            self.finish(pass_each(answer, lambda part: self._write(stream, part)))
        elif hasattr(answer, "__iter__") and not isinstance(answer, dict):
            for part in answer:
                self._write(stream, part)
        else:
            raise TypeError(
                "a streaming handler must return None, str, bytes or an iterator of str or bytes, not a %s; to send "
                "JSON, call stream.write(json.dumps(...))" % type(answer).__name__
            )

    def _write(self, stream: Stream, part: Any) -> None:
        if self._text and isinstance(part, str) and not stream.begun and stream.prelude is None:
            stream.set_content_type(TEXT)
        stream.write(part)

    def __call__(self, event: Any, context: Any) -> Any:
        """Run the handler and return the whole answer.

        The answer is a text if the handler wrote UTF-8 and did not call `Stream.set_status`, else a response dict for
        Lambda's HTTP integrations.
        """
        parts: List[bytes] = []
        stream = Stream(parts.append)
        self.run(event, stream, context)
        stream.close()
        if stream.prelude is not None:
            return {**stream.prelude, **_body(b"".join(parts[1:]))}
        body = _body(b"".join(parts))
        if not body["isBase64Encoded"]:
            return body["body"]
        return {"statusCode": 200, "headers": {"content-type": stream.content_type}, **body}


def _positional(function: Callable[..., Any]) -> int:
    """Number of positional arguments of `function`; 3 for ``*args`` and for a callable without Python code."""
    code = getattr(function, "__code__", None)
    if code is None:
        return 3
    if code.co_flags & 0x04:  # *args
        return 3
    return int(code.co_argcount) - (getattr(function, "__self__", None) is not None)


def _body(data: bytes) -> Dict[str, Any]:
    try:
        return {"body": data.decode(), "isBase64Encoded": False}
    except UnicodeDecodeError:
        import base64

        return {"body": base64.b64encode(data).decode(), "isBase64Encoded": True}


def handler(function: Callable[..., Any]) -> StreamingHandler:
    """Make `function` a streaming handler. It is called with (event, stream, context), or with (event, context).

    A function with three parameters writes to the stream. A function with two parameters returns an iterator of str
    or bytes, for example a generator. A function with three parameters may return an iterator too.
    """
    return StreamingHandler(function)
