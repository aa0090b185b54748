"""Makes the answer's body of a typed function's return value.

JSON, unless the value is bytes, an image or an array that the client wants as a file. The values of a generator become
parts of a streamed answer: text and bytes as they are, other values as lines of JSON, or as server-sent events.
"""

import dataclasses
import datetime
import decimal
import enum
import io
import json
import re
import sys
import uuid
from typing import Any, List, NamedTuple

from thawd.typed.kinds import is_from, is_model, is_struct, library

JSON = "application/json"
NPY = "application/x-npy"
EVENTS = "text/event-stream"
LINES = "application/x-ndjson"
TEXT = "text/plain; charset=utf-8"
BYTES = "application/octet-stream"
_MODES = {"image/jpeg": ("RGB", "L", "CMYK"), "image/png": ("1", "L", "LA", "I", "I;16", "P", "RGB", "RGBA")}
_FORMATS = {"image/jpeg": "JPEG", "image/webp": "WEBP", "image/png": "PNG"}


class Encoded(NamedTuple):
    """An answer's body, or a part of it, and its content type."""

    body: bytes
    content_type: str


def encoded(value: Any, accept: str) -> Encoded:
    """The body for a return value; `accept` is the value of the request's ``Accept``.

    Raises:
        TypeError: JSON cannot represent the value.
        ValueError: JSON cannot represent a number (NaN, infinity).
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Encoded(bytes(value), BYTES)
    if isinstance(value, io.BytesIO):
        return Encoded(value.getvalue(), BYTES)
    if is_from(getattr(sys.modules.get("PIL.Image"), "Image", None), "PIL.Image", "Image") and _is_image(value):
        return _image(value, accept)
    if NPY in accept and is_from(type(value), "numpy", "ndarray"):
        buffer = io.BytesIO()
        library("numpy").save(buffer, value, allow_pickle=False)
        return Encoded(buffer.getvalue(), NPY)
    return Encoded(json.dumps(simple(value), ensure_ascii=False, allow_nan=False).encode("utf-8", "replace"), JSON)


def part(value: Any, accept: str) -> Encoded:
    """The part of a streamed answer for one value of a generator."""
    if EVENTS in accept:
        text = value if isinstance(value, str) else json.dumps(simple(value), ensure_ascii=False, allow_nan=False)
        lines = "".join("data: %s\n" % line for line in re.split("\r\n|\r|\n", text))
        return Encoded((lines + "\n").encode(), EVENTS)
    if isinstance(value, str):
        return Encoded(value.encode(), TEXT)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Encoded(bytes(value), BYTES)
    return Encoded((json.dumps(simple(value), ensure_ascii=False, allow_nan=False) + "\n").encode(), LINES)


def simple(value: Any) -> Any:  # noqa: PLR0911 - a case each
    """The value with types that JSON has.

    Raises:
        TypeError: JSON cannot represent the value.
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, enum.Enum):
        return simple(value.value)
    if isinstance(value, dict):
        return {_key(key): simple(each) for key, each in value.items()}
    if hasattr(value, "_asdict"):
        return {name: simple(each) for name, each in value._asdict().items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [simple(each) for each in value]
    if is_model(type(value)):
        return value.model_dump(mode="json")
    if is_struct(type(value)):
        return library("msgspec").to_builtins(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: simple(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return _leaf(value)


def _leaf(value: Any) -> Any:
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (uuid.UUID, decimal.Decimal)):
        return str(value)
    if isinstance(value, (str, int, float)):  # a subclass
        return next(base(value) for base in (str, int, float) if isinstance(value, base))
    if callable(getattr(value, "tolist", None)):  # arrays and numbers of NumPy, tensors of torch
        return value.tolist()
    raise TypeError("a typed function returned a %s, which JSON cannot represent" % type(value).__name__)


def _key(key: Any) -> str:
    simplified = simple(key)
    if simplified is None or isinstance(simplified, (dict, list)):
        raise TypeError("a key of a JSON object must be a text, not %r" % (key,))
    return simplified if isinstance(simplified, str) else json.dumps(simplified)


def _is_image(value: Any) -> bool:
    return isinstance(value, library("PIL.Image").Image)


def _image(image: Any, accept: str) -> Encoded:
    wanted: List[str] = [kind for kind in _FORMATS if kind in accept and "image/png" not in accept]
    kind = wanted[0] if wanted else "image/png"
    buffer = io.BytesIO()
    modes = _MODES.get(kind)
    if modes is not None and image.mode not in modes:
        image = image.convert("RGB")
    image.save(buffer, _FORMATS[kind])
    return Encoded(buffer.getvalue(), kind)
