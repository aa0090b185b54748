"""A small parser for ``native/image.h``: constants, enums and structs, with the fields' offsets in C.

Tests use it to compare the documentation page, the decoder and the test images with the header. It understands only the
subset of C that this header uses. ``test_snapshot_format.py`` compares its result with the compiler's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HEADER = Path(__file__).resolve().parents[2] / "native" / "image.h"

_TYPES = {"uint64_t": ("Q", 8), "int64_t": ("q", 8), "uint32_t": ("I", 4), "int32_t": ("i", 4), "char": ("s", 1)}
_NUMBERS = {"UINT32_MAX": 0xFFFFFFFF}


@dataclass(frozen=True)
class CField:
    """A field of a struct: its offset, and its type in C, such as "uint32_t[6]"."""

    name: str
    type: str
    length: int | None
    offset: int
    size_bytes: int

    @property
    def c_type(self) -> str:
        return self.type if self.length is None else f"{self.type}[{self.length}]"

    @property
    def code(self) -> str:
        """Return the field's code for Python's module `struct`; for a struct, its name, with "*9" for an array of
        nine."""
        times = "" if self.length is None else str(self.length)
        if self.type.startswith("struct "):
            return self.type[len("struct ") :] + (times and "*" + times)
        return times + _TYPES[self.type][0]


@dataclass(frozen=True)
class Header:
    """The declarations of the header.

    Attributes:
        constants: values of each `#define`, by name.
        enums: enumerators and values of each enum, in order.
        structs: fields of each struct, in order.
        records: for each section, the struct of its records; None if the section is bytes.
    """

    constants: dict[str, int | str]
    enums: dict[str, dict[str, int]]
    structs: dict[str, tuple[CField, ...]]
    records: dict[str, str | None]

    def size_of(self, struct: str) -> int:
        return _aligned(self.structs[struct][-1].offset + self.structs[struct][-1].size_bytes, self.alignment(struct))

    def alignment(self, struct: str) -> int:
        return max(self._type_alignment(field.type) for field in self.structs[struct])

    def _type_alignment(self, c_type: str) -> int:
        return self.alignment(c_type[len("struct ") :]) if c_type.startswith("struct ") else _TYPES[c_type][1]


def parse(source: str) -> Header:
    """Parse the text of the header."""
    records = _records(source)
    code = re.sub(r"//[^\n]*", "", source)
    header = Header(_constants(code), {}, {}, records)
    for name, body in re.findall(r"^enum (\w+) \{(.*?)\};", code, re.DOTALL | re.MULTILINE):
        header.enums[name] = _enumerators(body)
    for name, body in re.findall(r"^struct (\w+) \{(.*?)\};", code, re.DOTALL | re.MULTILINE):
        header.structs[name] = _fields(body, header)
    return header


def _constants(code: str) -> dict[str, int | str]:
    found: dict[str, int | str] = {}
    for name, value in re.findall(r"^#define (\w+) +(\S.*?) *$", code, re.MULTILINE):
        number = re.sub(r"^UINT64_C\((\w+)\)$", r"\1", value)
        if number.startswith('"'):
            found[name] = number.strip('"')
        else:
            found[name] = _NUMBERS[number] if number in _NUMBERS else int(number, 0)
    return found


def _enumerators(body: str) -> dict[str, int]:
    values: dict[str, int] = {}
    following = 0
    for item in filter(None, (part.strip() for part in body.split(","))):
        name, _, value = (word.strip() for word in item.partition("="))
        values[name] = int(value, 0) if value else following
        following = values[name] + 1
    return values


def _fields(body: str, header: Header) -> tuple[CField, ...]:
    numbers = {**header.constants, **{name: value for enum in header.enums.values() for name, value in enum.items()}}
    fields: list[CField] = []
    end = 0
    for declaration in filter(None, (part.strip() for part in body.split(";"))):
        match = re.fullmatch(r"((?:struct )?\w+) (.+)", declaration, re.DOTALL)
        assert match, declaration
        c_type = match[1]
        struct = c_type[len("struct ") :] if c_type.startswith("struct ") else None
        one = header.size_of(struct) if struct else _TYPES[c_type][1]
        alignment = header.alignment(struct) if struct else _TYPES[c_type][1]
        for item in match[2].split(","):
            name, length = re.fullmatch(r"(\w+)(?:\[(\w+)\])?", item.strip()).groups()  # type: ignore[union-attr]
            many = None if length is None else int(numbers.get(length, length))
            offset = _aligned(end, alignment)
            fields.append(CField(name, c_type, many, offset, one * (1 if many is None else many)))
            end = offset + fields[-1].size_bytes
    return tuple(fields)


def _records(source: str) -> dict[str, str | None]:
    """Return what each section holds, according to the comments of `enum section`."""
    body = re.search(r"^enum section \{(.*?)\};", source, re.DOTALL | re.MULTILINE)
    assert body
    found = re.findall(r"^ *(SECTION_\w+), *// *(?:struct (\w+)|bytes)\b", body[1], re.MULTILINE)
    return {name: struct or None for name, struct in found}


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
