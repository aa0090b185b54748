"""Describes an image (a file with a frozen process) in one JSON document: sizes, mappings, threads, descriptors, host.

This module merges operations, the steps in which a thaw builds the memory of a copy, into mappings with their stored
pages, and counts bytes. All facts come from the `Image`; nothing is read from the system. Standard library only, Python
3.9 and later.

Addresses are text, ``"0x7f0000000000"``, because JSON parsers lose bits of large numbers. Each stored byte is counted
once in `kinds` and, unless it is data in a pipe or a socket pair, once in `largest`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

from thawd.snapshot.inspect import sockets
from thawd.snapshot.inspect.layout import PAGE_BYTES
from thawd.snapshot.inspect.memory import Memory
from thawd.snapshot.inspect.records import Descriptor, Image, Operation

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)  # noqa: UP017 - `datetime.UTC` came with Python 3.11
_ACCESS = {os.O_RDONLY: "read", os.O_WRONLY: "write", os.O_RDWR: "read and write"}

# Kinds of memory, in the order in which they are shown.
KINDS = ("anonymous", "heap", "stack", "file", "file_shared", "object", "pipe")

Description = dict[str, Any]


def describe(image: Image) -> Description:
    """Describe an image. `docs/reference/snapshot-format.md`, section "What inspect shows", explains the keys."""
    mappings = _mappings(image)
    objects = _objects(image)
    kinds = _kinds(image, mappings)
    stored = sum(kind["stored_bytes"] for kind in kinds)
    largest = [item for item in (*mappings, *objects) if item["stored_bytes"]]
    largest.sort(key=lambda item: -item["stored_bytes"])
    return {
        "path": _readable(image.path),
        "layout": image.layout,
        "architecture": image.architecture,
        "copies_pages": "copy" in image.flags,
        "frozen_at": _time(image.process.frozen_unix_ns),
        "file": {
            "bytes": image.file_bytes,
            "disk_bytes": image.disk_bytes,
            "tables_bytes": image.tables_bytes,
            "mode": f"{image.mode:04o}",
            "owner": image.owner,
        },
        "memory": {
            "mapped_bytes": sum(kind["mapped_bytes"] for kind in kinds),
            "private_bytes": sum(m["bytes"] for m in mappings if m["kind"] in ("anonymous", "heap", "stack", "file")),
            "anonymous_bytes": sum(m["bytes"] for m in mappings if m["kind"] in ("anonymous", "heap", "stack")),
            "shared_bytes": sum(m["bytes"] for m in mappings if m["kind"] in ("file_shared", "object")),
            "stored_bytes": stored,
            "operations": len(image.operations),
        },
        "kinds": kinds,
        "largest": largest,
        "files": _files(image, mappings),
        "mappings": mappings,
        "objects": objects,
        "threads": [{"tid": thread.tid, "name": _readable(thread.name)} for thread in image.threads],
        "descriptors": [
            {
                "number": item.number,
                "kind": item.kind,
                "what": _readable(_WHAT[item.kind](image, item)),
                "close_on_exec": item.close_on_exec,
            }
            for item in image.descriptors
        ],
        "host": _host(image),
        "process": _process(image),
    }


def _mappings(image: Image) -> list[Description]:
    """The mappings in the order of their addresses, each with its stored bytes."""
    memory = Memory(image.operations)
    stored = [0] * len(memory.mappings)
    for item in image.operations:
        if item.kind not in ("data", "copy"):
            continue
        for at in memory.span(item.address, item.end) or ():
            below = memory.mappings[at]
            stored[at] += min(item.end, below.end) - max(item.address, below.address)
    described = [_mapping(image, mapping, stored[at]) for at, mapping in enumerate(memory.mappings)]
    for at, mapping in enumerate(described):
        if mapping["what"] == "file":
            mapping["what"] = _name_from_neighbour(image, memory, at)
    for thread in image.threads:
        home = memory.at(thread.context)
        if home is not None:
            described[home]["stacks_of"].append(thread.tid)
    return described


def _mapping(image: Image, mapping: Operation, stored_bytes: int) -> Description:
    kind = _kind(image, mapping)
    described: Description = {
        "address": hex(mapping.address),
        "bytes": mapping.length,
        "stored_bytes": stored_bytes,
        "stored_pages": stored_bytes // PAGE_BYTES,
        "kind": kind,
        "what": kind,
        "protection": mapping.protection + ("s" if kind in ("file_shared", "object") else "p"),
        "advice": list(mapping.advice),
        "stacks_of": [],
    }
    if mapping.index is not None:
        named = image.objects[mapping.index].name if kind == "object" else image.files[mapping.index].path
        described.update(what=_readable(named), offset=mapping.offset)
    return described


def _kind(image: Image, mapping: Operation) -> str:
    if mapping.kind == "data" and mapping.offset < image.anonymous_offset:
        return "file"
    if mapping.kind not in ("anonymous", "data"):
        return mapping.kind
    if "stack" in mapping.flags:
        return "stack"
    process = image.process
    is_heap = mapping.address < process.brk_end and process.brk_start < mapping.end
    return "heap" if is_heap else "anonymous"


def _name_from_neighbour(image: Image, memory: Memory, at: int) -> str:
    """Find the name of the file of mapping `at`, a mapped file of which the process had changed all pages.

    The image stores such pages without the file's name. A library's segments are adjacent in memory, and its code and
    constants do not change, so the image has the name with a neighbouring mapping.
    """
    for step in (-1, 1):
        other = at + step
        while 0 <= other < len(memory.mappings):
            first, second = sorted((other, other - step))
            if memory.mappings[first].end != memory.mappings[second].address:
                break
            mapping = memory.mappings[other]
            if mapping.kind == "file" and mapping.index is not None:
                return _readable(image.files[mapping.index].path)
            if _kind(image, mapping) != "file":
                break
            other += step
    return "unnamed file"


def _objects(image: Image) -> list[Description]:
    return [
        {
            "kind": "object",
            "what": _readable(item.name),
            "bytes": item.bytes,
            "stored_bytes": item.stored_bytes,
            "seals": list(item.seals),
        }
        for item in image.objects
    ]


def _kinds(image: Image, mappings: list[Description]) -> list[Description]:
    """Mapped and stored bytes of each kind of memory that occurs."""
    found: dict[str, Description] = {
        kind: {"kind": kind, "mappings": 0, "mapped_bytes": 0, "stored_bytes": 0} for kind in KINDS
    }
    for mapping in mappings:
        row = found[mapping["kind"]]
        row["mappings"] += 1
        row["mapped_bytes"] += mapping["bytes"]
        row["stored_bytes"] += mapping["stored_bytes"]
    others = {
        "object": sum(item.stored_bytes for item in image.objects),
        "pipe": sum(item.data_bytes for item in image.descriptors),
    }
    for kind, size in others.items():
        found[kind]["stored_bytes"] += size
    return [row for row in found.values() if row["mappings"] or row["stored_bytes"]]


def _files(image: Image, mappings: list[Description]) -> list[Description]:
    """The mapped files, most stored bytes first."""
    found: dict[str, Description] = {}
    for mapping in mappings:
        if mapping["kind"] not in ("file", "file_shared"):
            continue
        row = found.setdefault(mapping["what"], {"path": mapping["what"], "mapped_bytes": 0, "stored_bytes": 0})
        row["mapped_bytes"] += mapping["bytes"]
        row["stored_bytes"] += mapping["stored_bytes"]
    for item in image.files:
        row = found.get(_readable(item.path), {})
        if row:
            row.update(bytes=item.bytes, modified_at=_time(item.modified_ns), checked=item.checked)
    return sorted(found.values(), key=lambda row: (-row["stored_bytes"], -row["mapped_bytes"], row["path"]))


def _host(image: Image) -> Description:
    host = image.host
    return {
        "kernel_release": _readable(host.kernel_release),
        "kernel_version": _readable(host.kernel_version),
        "boot_id": _readable(host.boot_id),
        "cpu_vendor": _readable(host.cpu_vendor),
        "cpu_signature": hex(host.cpu_signature),
        "cpu_features": [hex(word) for word in host.cpu_features],
        "xsave_bytes": host.xsave_bytes,
        "xcr0": hex(host.xcr0),
        "xsave_places": {
            str(number): list(host.xsave_places[2 * number : 2 * number + 2])
            for number in range(len(host.xsave_places) // 2)
            if host.xsave_places[2 * number + 1]
        },
        "glibc": _readable(host.glibc),
    }


def _process(image: Image) -> Description:
    process = image.process
    return {
        "pid": image.threads[0].tid,
        "working_folder": _readable(process.working_folder),
        "umask": f"{process.umask:04o}",
        "brk": hex(process.brk_start),
        "brk_bytes": process.brk_end - process.brk_start,
        "stack_start": hex(process.stack_start),
        "vdso": hex(process.vdso_start),
        "vdso_bytes": process.vdso_bytes,
        "parcel_bytes": process.parcel_bytes,
        "register_permissions": hex(process.register_permissions),
        "users": list(process.users),
        "groups": list(process.groups),
        "capabilities": hex(process.permitted),
        "capabilities_bounding": hex(process.bounding),
        "no_new_privileges": bool(process.no_privileges),
        "seccomp_filters": process.seccomp_filters,
        # The handler 0 is SIG_DFL, 1 is SIG_IGN.
        "signals_handled": [number for number, act in enumerate(image.signals, 1) if act.handler > 1],
        "signals_ignored": [number for number, act in enumerate(image.signals, 1) if act.handler == 1],
    }


def _provided(_image: Image, _item: Descriptor) -> str:
    return "passed by the thawing process"


def _file(image: Image, item: Descriptor) -> str:
    access = _ACCESS.get(item.open_flags & os.O_ACCMODE, "path only")
    return f"{image.files[item.index].path}, {access}, at {item.position}"


def _device(image: Image, item: Descriptor) -> str:
    return image.files[item.index].path


def _object(image: Image, item: Descriptor) -> str:
    return f"{image.objects[item.index].name}, at {item.position}"


def _pipe_read(_image: Image, item: Descriptor) -> str:
    return f"pipe {item.index}, reading end, {item.data_bytes} of {item.value} bytes in it"


def _pipe_write(_image: Image, item: Descriptor) -> str:
    return f"pipe {item.index}, writing end"


def _eventfd(_image: Image, item: Descriptor) -> str:
    return ("semaphore at " if item.index else "count at ") + str(item.value)


def _epoll(image: Image, item: Descriptor) -> str:
    watched = sorted(watch.number for watch in image.epoll if watch.epoll == item.number)
    return "watches " + (", ".join(map(str, watched)) or "nothing")


def _socketpair(_image: Image, item: Descriptor) -> str:
    return f"other end is descriptor {item.index}"


def _socket(image: Image, item: Descriptor) -> str:
    return sockets.describe(image.sockets[item.index])


def _timer(_image: Image, item: Descriptor) -> str:
    return "set" if item.position else "not set"


def _signals(_image: Image, item: Descriptor) -> str:
    return "receives signals " + ", ".join(str(bit + 1) for bit in range(64) if item.value >> bit & 1)


def _ring(image: Image, item: Descriptor) -> str:
    return f"io_uring of {image.rings[item.index].entries} entries, no request pending"


def _inotify(_image: Image, _item: Descriptor) -> str:
    return "watches nothing"


def _copy(image: Image, item: Descriptor) -> str:
    return f"the same as descriptor {image.descriptors[item.index].number}"


_WHAT: dict[str, Callable[[Image, Descriptor], str]] = {
    "provided": _provided,
    "file": _file,
    "device": _device,
    "object": _object,
    "pipe_read": _pipe_read,
    "pipe_write": _pipe_write,
    "eventfd": _eventfd,
    "epoll": _epoll,
    "socketpair": _socketpair,
    "copy": _copy,
    "socket": _socket,
    "timer": _timer,
    "signals": _signals,
    "inotify": _inotify,
    "ring": _ring,
}


def _readable(value: str) -> str:
    """The text with bytes that are not UTF-8 escaped, so that JSON can contain it."""
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _time(unix_ns: int) -> str:
    moment = _EPOCH + timedelta(microseconds=unix_ns // 1000)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
