"""The kinds of values that a request's body can be, or a part of a multipart body, besides JSON: see `kind_of`.

NumPy and Pillow are looked up among the imported modules: an annotation can name their types only if they are imported.
"""

import enum
import io
import sys
import typing
from typing import Any, Tuple

SCALAR = "scalar"
"""A value that fits into a query string: a text, a number, a Boolean, a date, a value of an enumeration."""
JSON = "json"
BYTES = "bytes"
FILE = "file"
ARRAY = "array"
IMAGE = "image"
BINARY = (BYTES, FILE, ARRAY, IMAGE)

_SCALAR_MODULES = {"datetime": ("date", "datetime", "time"), "uuid": ("UUID",), "decimal": ("Decimal",)}


def kind_of(annotation: Any) -> str:  # noqa: PLR0911 - a kind each
    """The kind of a parameter with this annotation."""
    annotation = plain(annotation)
    if annotation in (bytes, bytearray):
        return BYTES
    if annotation in (io.BytesIO, typing.BinaryIO, typing.IO, io.BufferedIOBase, io.IOBase):
        return FILE
    origin = typing.get_origin(annotation) or annotation
    if is_from(origin, "numpy", "ndarray"):
        return ARRAY
    if is_from(origin, "PIL.Image", "Image"):
        return IMAGE
    if origin is typing.Literal:
        return SCALAR
    if isinstance(annotation, type):
        if issubclass(annotation, (str, int, float, bool, enum.Enum)):
            return SCALAR
        if annotation.__name__ in _SCALAR_MODULES.get(annotation.__module__, ()):
            return SCALAR
    return JSON


def library(name: str) -> Any:
    """A module that the function has imported, such as ``numpy``. This package imports no library itself."""
    return sys.modules[name]


def is_from(annotation: Any, module: str, name: str) -> bool:
    """Whether `annotation` is the class `name` of a module that is imported."""
    found = getattr(sys.modules.get(module), name, None)
    return found is not None and annotation is found


def plain(annotation: Any) -> Any:
    """The annotation without ``Annotated`` and without ``None`` as an alternative, if that leaves one type."""
    annotation, _ = unwrapped(annotation)
    if is_union(annotation):
        others = [each for each in typing.get_args(annotation) if each is not type(None)]
        if len(others) == 1:
            return plain(others[0])
    return annotation


def unwrapped(annotation: Any) -> Tuple[Any, Tuple[Any, ...]]:
    """The annotation without ``Annotated``, and the metadata in it."""
    metadata = getattr(annotation, "__metadata__", None)
    if metadata is None:
        return annotation, ()
    return annotation.__origin__, tuple(metadata)


def is_union(annotation: Any) -> bool:
    """Whether the annotation is ``Union[...]``, ``Optional[...]`` or ``A | B``."""
    origin = typing.get_origin(annotation)
    return origin is typing.Union or (origin is not None and getattr(origin, "__name__", "") == "UnionType")


def is_model(annotation: Any) -> bool:
    """Whether the annotation is a model of pydantic."""
    base = getattr(sys.modules.get("pydantic"), "BaseModel", None)
    return base is not None and isinstance(annotation, type) and issubclass(annotation, base)


def is_struct(annotation: Any) -> bool:
    """Whether the annotation is a struct of msgspec."""
    base = getattr(sys.modules.get("msgspec"), "Struct", None)
    return base is not None and isinstance(annotation, type) and issubclass(annotation, base)
