"""Formats the description of an image for people: the most important facts first, aligned columns, sizes in MiB.

This module only chooses words and columns; all figures come from `thawd.snapshot.inspect.description`. Standard library
only, Python 3.9 and later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

_MIB = 1 << 20
_KINDS = {
    "anonymous": "anonymous",
    "heap": "heap",
    "stack": "stack",
    "file": "files, private",
    "file_shared": "files, shared",
    "object": "memory objects",
    "pipe": "in pipes",
}


def text(description: dict[str, Any], *, rows: int | None = 10) -> str:
    """A report of several lines, with a newline at the end.

    Args:
        description: the result of `describe`.
        rows: how many rows of a long table to show, those with the most stored bytes first. None shows all rows and
            adds a table of all mappings in the order of their addresses.
    """
    sections = [
        _head(description),
        _memory(description),
        _largest(description, rows),
        _files(description, rows),
        _threads(description, rows),
        _descriptors(description),
        _process(description),
        _host(description),
    ]
    if rows is None:
        sections.append(_mappings(description))
    lines = "\n\n".join("\n".join(section) for section in sections).splitlines()
    return "".join(_printable(line.rstrip()) + "\n" for line in lines)


def _head(description: dict[str, Any]) -> list[str]:
    file, memory = description["file"], description["memory"]
    how = "read" if description["copies_pages"] else "mapped"
    return [
        _name(description["path"]),
        f"  frozen {_moment(description['frozen_at'])}, process {description['process']['pid']}, "
        f"{_count(description['threads'], 'thread')}, {_count(description['descriptors'], 'descriptor')}, "
        f"{_count(description['mappings'], 'mapping')} in {memory['operations']} operations",
        f"  file of {_mib(file['bytes'])} MiB, taking {_mib(file['disk_bytes'])} on disk; "
        f"{_mib(memory['stored_bytes'])} MiB of memory in it, {how} at the thaw",
        f"  layout {description['layout']}, {description['architecture']}, mode {file['mode']}, owner {file['owner']}",
    ]


def _memory(description: dict[str, Any]) -> list[str]:
    memory = description["memory"]
    rows = [
        [_KINDS[kind["kind"]], str(kind["mappings"]), _mib(kind["mapped_bytes"]), _mib(kind["stored_bytes"])]
        for kind in description["kinds"]
    ]
    count = str(len(description["mappings"]))
    rows.append(["total", count, _mib(memory["mapped_bytes"]), _mib(memory["stored_bytes"])])
    return ["Memory, MiB", *_table(["kind", "mappings", "mapped", "stored"], rows, numbers=(1, 2, 3))]


def _largest(description: dict[str, Any], most: int | None) -> list[str]:
    total = description["memory"]["stored_bytes"]
    shown = description["largest"][:most]
    rows = [
        [
            _mib(item["stored_bytes"]),
            _share(item["stored_bytes"], total),
            _mib(item["bytes"]),
            item.get("address", "-"),
            item.get("protection", "-"),
            _what(item),
        ]
        for item in shown
    ]
    heads = ["stored", "", "mapped", "address", "", "what"]
    return [
        "Largest parts, MiB",
        *_table(heads, rows, numbers=(0, 1, 2)),
        *_hidden_rows(description["largest"], shown),
    ]


def _files(description: dict[str, Any], most: int | None) -> list[str]:
    shown = description["files"][:most]
    rows = [[_mib(item["stored_bytes"]), _mib(item["mapped_bytes"]), _name(item["path"])] for item in shown]
    return [
        "Mapped files, MiB",
        *_table(["stored", "mapped", "path"], rows, numbers=(0, 1)),
        *_hidden_rows(description["files"], shown),
    ]


def _threads(description: dict[str, Any], most: int | None) -> list[str]:
    shown = description["threads"][:most]
    rows = [[str(item["tid"]), _name(item["name"])] for item in shown]
    return ["Threads", *_table(["id", "name"], rows, numbers=(0,)), *_hidden_rows(description["threads"], shown)]


def _descriptors(description: dict[str, Any]) -> list[str]:
    rows = [
        [str(item["number"]), item["kind"].replace("_", " "), _name(item["what"])]
        for item in description["descriptors"]
    ]
    return ["Descriptors", *_table(["number", "kind", "what"], rows, numbers=(0,))]


def _process(description: dict[str, Any]) -> list[str]:
    process = description["process"]
    rows = [
        ["working folder", _name(process["working_folder"])],
        ["umask", process["umask"]],
        ["brk", f"{process['brk']}, {_mib(process['brk_bytes'])} MiB"],
        ["signals handled", _numbers(process["signals_handled"])],
        ["signals ignored", _numbers(process["signals_ignored"])],
        ["registers requested", process["register_permissions"]],
        ["space for arguments", f"{process['parcel_bytes']} bytes"],
    ]
    return ["Process", *_table([], rows)]


def _host(description: dict[str, Any]) -> list[str]:
    host = description["host"]
    rows = [
        ["kernel", _name(f"{host['kernel_release']} {host['kernel_version']}")],
        ["boot", _name(host["boot_id"])],
        [
            "processor",
            f"{_name(host['cpu_vendor'])} {host['cpu_signature']}, features {' '.join(host['cpu_features'])}",
        ],
        ["registers", f"{host['xsave_bytes']} bytes, xcr0 {host['xcr0']}"],
        ["glibc", _name(host["glibc"])],
    ]
    return ["Frozen on", *_table([], rows)]


def _mappings(description: dict[str, Any]) -> list[str]:
    rows = [
        [item["address"], _mib(item["bytes"]), _mib(item["stored_bytes"]), item["protection"], _what(item)]
        for item in description["mappings"]
    ]
    heads = ["address", "size", "stored", "", "what"]
    return ["Mappings, MiB", *_table(heads, rows, numbers=(1, 2))]


def _what(item: dict[str, Any]) -> str:
    """The contents of a mapping or an object, with its unusual properties."""
    words = [_name(item["what"])]
    if item["kind"] in ("file_shared", "object"):
        words.append("shared")
    tids = item.get("stacks_of", [])
    if tids and item["kind"] != "stack":
        words.append("stack of " + _numbers(tids))
    words += item.get("advice", [])
    return ", ".join(words)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Iterable[int] = ()) -> list[str]:
    """Rows of cells in indented columns; the columns in `numbers` are right-aligned."""
    if not rows:
        return ["  none"]
    lines = [list(heads), *rows] if heads else list(rows)
    widths = [max(len(line[column]) for line in lines) for column in range(len(rows[0]))]
    right = set(numbers)
    return [
        "  "
        + "  ".join(
            cell.rjust(widths[column]) if column in right else cell.ljust(widths[column])
            for column, cell in enumerate(line)
        )
        for line in lines
    ]


def _hidden_rows(every: Sequence[dict[str, Any]], shown: Sequence[dict[str, Any]]) -> list[str]:
    """A line for the rows that are not shown."""
    hidden = every[len(shown) :]
    if not hidden:
        return []
    stored = sum(item.get("stored_bytes", 0) for item in hidden)
    return [f"  and {len(hidden)} more" + (f", with {_mib(stored)} MiB stored" if stored else "")]


def _mib(size_bytes: int) -> str:
    """Bytes in MiB; a small size above zero is shown as "<0.01"."""
    return "<0.01" if 0 < size_bytes < _MIB / 100 else f"{size_bytes / _MIB:,.2f}"


def _share(part: int, total: int) -> str:
    return f"{100 * part / total:.0f} %" if 100 * part >= total else "<1 %"


def _moment(time: str) -> str:
    return time[:19].replace("T", " ") + " UTC"


def _count(items: Sequence[Any], noun: str) -> str:
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(map(str, values)) or "none"


def _name(value: str) -> str:
    """Text from the image, escaped because a name may contain a newline; "-" for an empty text."""
    return _printable(value) or "-"


def _printable(value: str) -> str:
    """Text that is safe to print: every character that is not printable is escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in value)
