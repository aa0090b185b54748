"""Decodes ``aws-chunked``, the framing in which S3 clients send the body of an upload.

The signatures of chunks are not checked: thawd does not verify the signatures of S3 requests at all. No I/O.

Source: Amazon S3 API reference, "Signature calculations … chunked upload".
"""

from __future__ import annotations

import re

from thawd.gateway.s3.xml import S3Error

_LONGEST_LINE_BYTES = 8 * 1024
_MOST_TRAILER_BYTES = 16 * 1024


class AwsChunked:
    """Decoder of ``aws-chunked`` bodies: chunks with a size line each, then trailing headers.

    Attributes:
        finished: whether the last chunk and the trailers have been read.
        trailers: the trailing headers, names in lower case.
    """

    def __init__(self) -> None:
        self.finished = False
        self.trailers: dict[str, str] = {}
        self._buffer = bytearray()
        self._left = 0
        self._after_data = False
        self._in_trailers = False
        self._trailer_bytes = 0

    def feed(self, data: bytes) -> bytes:
        """Decode `data`; returns those of its bytes that belong to the object.

        Raises:
            S3Error: the framing is broken (400).
        """
        self._buffer += data
        out: list[bytes] = []
        while not self.finished:
            if self._left:
                part = bytes(self._buffer[: self._left])
                del self._buffer[: len(part)]
                self._left -= len(part)
                out.append(part)
                if self._left:
                    break
                self._after_data = True
            line = self._line()
            if line is None:
                break
            self._take_line(line)
        if self.finished and self._buffer:
            if self._buffer.strip(b"\r\n"):
                raise _broken(f"it has {bytes(self._buffer[:40])!r} after its end")
            self._buffer.clear()
        return b"".join(out)

    def end(self) -> None:
        """Check that the body is complete. Call this after all data has been passed to `feed`.

        Raises:
            S3Error: the last chunk is missing (400).
        """
        # Some clients leave out the empty line after the last trailer, or the trailer's own line end.
        if self._in_trailers and not self.finished:
            if self._buffer:
                self._take_line(bytes(self._buffer))
            self.finished = True
        if not self.finished:
            raise S3Error(400, "IncompleteBody", "The aws-chunked body ended before its last chunk; send it again")

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\r\n")
        if end < 0:
            if len(self._buffer) > _LONGEST_LINE_BYTES:
                raise _broken(f"it has a line of more than {_LONGEST_LINE_BYTES} bytes")
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _take_line(self, line: bytes) -> None:
        if self._after_data:
            if line:
                raise _broken(f"it has {line[:40]!r} where a chunk should end")
            self._after_data = False
        elif self._in_trailers:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > _MOST_TRAILER_BYTES:
                raise _broken(f"its trailers have more than {_MOST_TRAILER_BYTES} bytes")
            name, colon, value = line.decode("latin-1").partition(":")
            if colon:
                self.trailers[name.strip().lower()] = value.strip()
            elif line:
                raise _broken(f"it has {line[:40]!r} where a trailer should be")
            else:
                self.finished = True
        else:
            size = line.split(b";", 1)[0].strip()
            if not re.fullmatch(rb"[0-9a-fA-F]{1,15}", size):
                raise _broken(f"it has {line[:40]!r} where a chunk's size should be")
            self._left = int(size, 16)
            self._in_trailers = self._left == 0


def _broken(what: str) -> S3Error:
    return S3Error(400, "InvalidRequest", f"The aws-chunked body is broken: {what}")
