"""An application's answer: it is sent part by part, or returned whole if the application has made it in one part.

A whole answer has fewer costs, and the client learns its length. So the status and headers are kept until the first
part of the body is there.
"""

import base64
from typing import Any, Dict, List, Optional, Tuple

from thawd.runtime.faults import Fault
from thawd.streaming import Stream

INVALID_ANSWER = "Runtime.InvalidAnswer"
Headers = List[Tuple[str, str]]


class Response:
    """The answer to one request.

    Args:
        stream: takes the answer in parts; None: the answer is returned whole.

    Attributes:
        begun: whether the application has set status and headers.
        complete: whether the application has sent the end of its answer.
    """

    def __init__(self, stream: Optional[Stream]) -> None:
        self.begun = False
        self.complete = False
        self._stream = stream
        self._status = 0
        self._headers: Headers = []
        self._kept: List[bytes] = []
        self._is_sent = False

    @property
    def streams(self) -> bool:
        """Whether a part of the answer has been sent to the client."""
        return self._is_sent

    def begin(self, status: int, headers: Headers) -> None:
        """Set status and headers.

        Args:
            status: 200 to 599.
            headers: names in any case, and values.

        Raises:
            Fault: the answer has begun, or the status is out of range.
        """
        if self.begun:
            raise Fault(INVALID_ANSWER, "the application has begun its answer twice")
        if not 200 <= status <= 599:
            raise Fault(INVALID_ANSWER, "the application answers with status %d; it must be 200 to 599" % status)
        self.begun = True
        self._status, self._headers = status, headers

    def replace(self, status: int, headers: Headers) -> None:
        """Set other status and headers, because the application has failed before it sent a part."""
        self.begun = False
        self._kept = []  # of a whole answer: what the application had made of it
        self.begin(status, headers)

    def write(self, data: bytes, *, more: bool) -> None:
        """Take a part of the body. `more` says whether further parts follow.

        Raises:
            Fault: the answer has not begun, or is complete already.
        """
        if not self.begun:
            raise Fault(INVALID_ANSWER, "the application has sent a body before status and headers")
        if self.complete:
            raise Fault(INVALID_ANSWER, "the application has sent a further part after the end of its answer")
        self.complete = not more
        if self._stream is None or (not more and not self._is_sent):
            self._kept.append(data)
        elif data or not self._is_sent:
            self._send(data)

    def send_now(self) -> None:
        """Send a complete answer to the client, although the application still runs."""
        if self._stream is not None and not self._is_sent:
            data = b"".join(self._kept)
            self._kept = []
            if not any(name.lower() == "content-length" for name, _ in self._headers):
                self._headers.append(("content-length", str(len(data))))
            self._send(data)

    def _send(self, data: bytes) -> None:
        assert self._stream is not None
        if not self._is_sent:
            self._is_sent = True
            self._stream.set_status(self._status)
            self._set_headers()
        self._stream.write(data)

    def _set_headers(self) -> None:
        assert self._stream is not None
        grouped = _grouped(self._headers)
        # An application may leave the type out; null says that no default is wanted.
        grouped["headers"].setdefault("content-type", None)
        self._stream.prelude = {"statusCode": self._status, **grouped}

    def rest(self) -> Optional[bytes]:
        """The body of an answer that was not sent in parts, once status and headers are set in the stream; else None.

        Raises:
            Fault: the answer is incomplete.
        """
        if not self.complete:
            raise Fault(INVALID_ANSWER, "the application has ended before its answer was complete")
        if self._is_sent:
            return None
        assert self._stream is not None
        self._stream.set_status(self._status)
        self._set_headers()
        return b"".join(self._kept)

    def document(self, *, is_format_1: bool) -> Dict[str, Any]:
        """The answer as Lambda's HTTP integrations expect it from a handler.

        Args:
            is_format_1: whether the answer is to have payload format 1.0.

        Raises:
            Fault: the answer is incomplete.
        """
        if not self.complete:
            raise Fault(INVALID_ANSWER, "the application has ended before its answer was complete")
        data = b"".join(self._kept)
        grouped = _grouped(self._headers)
        if is_format_1:
            many: Dict[str, List[str]] = {}
            for name, value in self._headers:
                many.setdefault(name.lower(), []).append(value)
            grouped = {"multiValueHeaders": many}
        elif "multiValueHeaders" in grouped:
            for name, values in grouped.pop("multiValueHeaders").items():
                grouped["headers"][name] = ", ".join(values)
        return {"statusCode": self._status, **grouped, **_text_or_base64(data, self._headers)}


def _grouped(headers: Headers) -> Dict[str, Any]:
    """Headers as in the prelude of a streamed answer: ``cookies``, and those that occur more than once, separately."""
    single: Dict[str, str] = {}
    many: Dict[str, List[str]] = {}
    cookies: List[str] = []
    for key, value in headers:
        name = key.lower()
        if name == "set-cookie":
            cookies.append(value)
        elif name in many:
            many[name].append(value)
        elif name in single:
            many[name] = [single.pop(name), value]
        else:
            single[name] = value
    grouped: Dict[str, Any] = {"headers": single}
    if many:
        grouped["multiValueHeaders"] = many
    if cookies:
        grouped["cookies"] = cookies
    return grouped


def _text_or_base64(data: bytes, headers: Headers) -> Dict[str, Any]:
    is_encoded = any(name.lower() == "content-encoding" for name, _ in headers)
    try:
        return {"body": data.decode() if not is_encoded else _not_text(), "isBase64Encoded": False}
    except UnicodeDecodeError:
        return {"body": base64.b64encode(data).decode(), "isBase64Encoded": True}


def _not_text() -> str:
    raise UnicodeDecodeError("utf-8", b"", 0, 0, "the body is compressed")
