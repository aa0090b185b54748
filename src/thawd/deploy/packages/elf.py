"""Reads ELF files: their machine, the libraries that they load, and the end of the part that is loaded.

Only the program headers and the dynamic section are read, as the dynamic linker reads them; sections may be missing.

Source: elf(5); System V ABI, "Dynamic Section".
"""

from __future__ import annotations

import itertools
import mmap
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little-endian: the only kind that Lambda runs
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_DYNAMIC_ENTRY = struct.Struct("<qQ")
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_NEEDED, _DT_STRTAB = 0, 1, 5
_SHT_NOBITS, _SHF_ALLOC = 8, 2
# Kinds of sections that only linkers and debuggers read: symbol tables, their names and indices, relocations, groups.
_KINDS_OF_SYMBOLS = (2, 3, 4, 9, 17, 18)
_FOR_DEBUGGERS = (
    *(b".debug", b".zdebug", b".gnu.debug", b".gnu_debug", b".gdb_index", b".comment", b".stab", b".line"),
    *(b".note", b".gnu.build.attributes", b".annobin", b".llvm", b".gnu.lto_", b".gnu.warning"),
)
_LONGEST_NAME = 32
_MOST_ENTRIES = 100_000
_MACHINES = {62: "x86_64", 183: "aarch64"}
_SHOFF, _SHNUM, _SHSTRNDX = 40, 60, 62  # offsets of these fields in the header
_MOST_LIBRARIES = 10_000


@dataclass(frozen=True, slots=True)
class Elf:
    """An ELF file.

    Attributes:
        machine: ``x86_64``, ``aarch64``, or the number of another machine.
        needed: names of the libraries that it loads, such as ``libm.so.6``.
        loaded_bytes: offset of the end of the part of the file that is mapped into processes.
        may_be_cut: whether the file contains after that offset only sections that are never loaded, and their table.
    """

    machine: str
    needed: tuple[str, ...]
    loaded_bytes: int
    may_be_cut: bool


def read(path: Path) -> Elf | None:
    """Return the facts about a 64-bit ELF file; None: it is another kind of file, or broken."""
    try:
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                return None
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _parse(content)
    except (struct.error, OSError, ValueError, IndexError, OverflowError):
        return None


def cut(loaded: bytes) -> bytes:
    """Return an ELF file without symbol tables and debugging sections, which no process loads.

    The bytes that a process loads stay as they are, apart from three fields of the header that say where the table of
    sections is. Unlike ``strip``, this works for all architectures and always gives the same bytes.

    Args:
        loaded: the first `Elf.loaded_bytes` of a file that may be cut.
    """
    short = bytearray(loaded)
    struct.pack_into("<Q", short, _SHOFF, 0)
    struct.pack_into("<H", short, _SHNUM, 0)
    struct.pack_into("<H", short, _SHSTRNDX, 0)
    return bytes(short)


def _parse(content: mmap.mmap) -> Elf:
    header = _HEADER.unpack_from(content)
    machine, program_offset, section_offset = header[2], header[5], header[6]
    program_count, section_size, section_count = header[10], header[11], header[12]
    segments = [_PROGRAM.unpack_from(content, program_offset + i * _PROGRAM.size) for i in range(program_count)]
    loaded = max((kind[2] + kind[5] for kind in segments), default=0)
    loaded = max(loaded, program_offset + program_count * _PROGRAM.size, _HEADER.size)
    if loaded > len(content):
        raise ValueError("the file is shorter than its segments")
    sections = [_SECTION.unpack_from(content, section_offset + i * section_size) for i in range(section_count)]
    return Elf(
        _MACHINES.get(machine, f"machine {machine}"),
        tuple(_needed(content, segments)),
        loaded,
        bool(segments) and _ends_with_sections(content, sections, header, loaded),
    )


def _ends_with_sections(
    content: mmap.mmap, sections: Sequence[tuple[int, ...]], header: Sequence[int], loaded: int
) -> bool:
    """Return whether the file's bytes from `loaded` on belong to sections for linkers and debuggers, or to their table.

    A program may read other data of its own file: other sections, or an archive that was appended to the file.

    Args:
        content: the file.
        sections: the sections' headers.
        header: the fields of the file's header.
        loaded: end of the part that is loaded.
    """
    table, size, names_index = header[6], header[11], header[13]
    length = len(content)
    if not sections or table < loaded:
        return False
    end = table + len(sections) * size
    names = sections[names_index][4]
    for name, kind, flags, _, offset, bytes_, *_ in sections:
        if kind == _SHT_NOBITS or bytes_ == 0:
            continue
        if offset + bytes_ > loaded:
            if flags & _SHF_ALLOC or offset < loaded:
                return False
            its_name = content[names + name : names + name + _LONGEST_NAME]
            if kind not in _KINDS_OF_SYMBOLS and not its_name.startswith(_FOR_DEBUGGERS):
                return False
            end = max(end, offset + bytes_)
    return end >= length


def _needed(content: mmap.mmap, segments: Sequence[tuple[int, ...]]) -> Iterator[str]:
    dynamic = next(((kind[2], kind[5]) for kind in segments if kind[0] == _PT_DYNAMIC), None)
    if dynamic is None:
        return
    offset, size = dynamic
    places = range(offset, offset + size - 15, 16)[:_MOST_ENTRIES]
    every = (_DYNAMIC_ENTRY.unpack_from(content, place) for place in places)
    entries = list(itertools.takewhile(lambda entry: entry[0] != _DT_NULL, every))
    address = next((value for tag, value in entries if tag == _DT_STRTAB), None)
    if address is None:
        return
    strings = _file_offset(address, segments)
    for name in [value for tag, value in entries if tag == _DT_NEEDED][:_MOST_LIBRARIES]:
        start = strings + name
        end = content.find(b"\0", start)
        yield content[start : end if end >= 0 else start].decode(errors="replace")


def _file_offset(address: int, segments: Sequence[tuple[int, ...]]) -> int:
    for kind, _, offset, virtual, _, size, *_ in segments:
        if kind == _PT_LOAD and virtual <= address < virtual + size:
            return offset + address - virtual
    raise ValueError("an address outside all segments")
