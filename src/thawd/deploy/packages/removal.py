"""Rules about files of distributions that a function does not need when it runs. Code folders are not touched.

A rule is careful: it keeps a folder whose name appears as a module in the remaining source files, and stubs of packages
that read stubs. Nothing is deleted on the disk: `slim` returns a distribution without the files.

After the removal, a distribution's RECORD lists the remaining files. So packages that look at their own list of files
(`importlib.metadata.files`) find no missing files.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from thawd.deploy.packages import elf
from thawd.deploy.packages.contents import Item
from thawd.deploy.packages.distributions import Distribution, recorded_path, rows_of_record

RULES: Mapping[str, str] = {
    "tests": "folders named test or tests that no other module names",
    "documents": "folders named doc, docs, examples or benchmarks that no module names; *.md, *.rst",
    "stubs": "type stubs: *.pyi and py.typed, except in packages that read their stubs",
    "build": "what compilers use: headers, C and Cython sources, static libraries, CMake files",
    "bytecode": "*.pyc with the source beside them: they contain times, and belong to one version of Python",
    "scripts": "scripts in bin/ that begin with the path of an interpreter of this machine",
    "installer": "what the installer wrote about itself: INSTALLER, REQUESTED, direct_url.json",
    "symbols": "symbol tables and debugging sections of shared objects that have no other data which is not loaded",
}
"""The rules by name, in the order in which they are applied."""

_FOLDERS = {
    **dict.fromkeys(("test", "tests"), "tests"),
    **dict.fromkeys(("doc", "docs", "example", "examples", "benchmark", "benchmarks"), "documents"),
}
_DOCUMENTS = (".md", ".rst")
_STUBS = (".pyi",)
_BUILD = (
    *(".h", ".hh", ".hpp", ".hxx", ".inl", ".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".f", ".f90"),
    *(".pyx", ".pxd", ".pxi", ".a", ".lib", ".cmake", ".pc"),
)
_INSTALLER = ("INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json")
_DATA_FOLDERS = ("share/doc/", "share/man/")
_READS_STUBS = re.compile(rb"attach_stub|\.pyi['\"]")
# Module names such as numpy.linalg.tests, wherever they stand in a source file: in an import, or as a text.
_DOTTED = re.compile(rb"\b[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_RELATIVE = re.compile(rb"^[ \t]*from[ \t]+(\.+)([\w.]*)[ \t]+import[ \t]+(?:\(([^)]*)\)|([^\n#]*))", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Removed:
    """The files of a distribution that a rule removes.

    Attributes:
        rule: name of the rule.
        distribution: name of the distribution.
        files: number of files; for ``symbols``, of files that become smaller.
        size_bytes: their size before packing; for ``symbols``, the size of the removed part.
    """

    rule: str
    distribution: str
    files: int
    size_bytes: int


def slim(
    distributions: Sequence[Distribution], *, without: Collection[str] = ()
) -> tuple[list[Distribution], list[Removed]]:
    """Return the distributions without the files that the rules take away, and what that is. Blocks.

    Args:
        distributions: all distributions of a function.
        without: names of rules that are not applied.
    """
    named = _modules_named(distributions)
    slimmed, removed = [], []
    for each in distributions:
        sizes: dict[str, list[int]] = {}
        kept = []
        for item, rule in _judged(each, named):
            if rule is None or rule in without:
                kept.append(item)
            else:
                sizes.setdefault(rule, []).append(item.size_bytes)
        if "symbols" not in without:
            kept = [_cut(item, sizes) for item in kept]
        slimmed.append(replace(each, items=tuple(_with_record(kept))))
        removed += [Removed(rule, each.name, len(sizes[rule]), sum(sizes[rule])) for rule in RULES if rule in sizes]
    return slimmed, removed


def _judged(distribution: Distribution, named: Collection[str]) -> Iterator[tuple[Item, str | None]]:
    """Yield each item of a distribution with the rule that takes it away, or None."""
    paths = {item.path for item in distribution.items}
    sources = [item for item in distribution.items if item.path.endswith(".py")]
    reads_stubs: bool | None = None
    texts: bytes | None = None
    for item in distribution.items:
        rule = _rule(item, paths, named)
        if rule == "stubs":
            if reads_stubs is None:
                reads_stubs = any(_READS_STUBS.search(source.read()) for source in sources)
            rule = None if reads_stubs else rule
        elif rule == "documents" and item.path.endswith(_DOCUMENTS):
            if texts is None:
                texts = b"\n".join(source.read() for source in sources)
            rule = None if _base(item.path).encode() in texts else rule
        yield item, rule


def _rule(item: Item, paths: Collection[str], named: Collection[str]) -> str | None:  # noqa: PLR0911 - a list of cases
    path, name = item.path, _base(item.path)
    if path.partition("/")[0].endswith(".dist-info"):
        return "installer" if name in _INSTALLER and path.count("/") == 1 else None
    if (folder := _folder(path)) is not None and folder.replace("/", ".") not in named:
        return _FOLDERS[_base(folder)]
    if name.endswith(".pyc"):
        inside = "/__pycache__/" in f"/{path}"
        return "bytecode" if inside or path.removesuffix("c") in paths else None
    if path.startswith("bin/"):
        return "scripts" if _is_script_of_this_machine(item) else None
    if name.endswith(_STUBS) or name == "py.typed":
        return "stubs"
    if name.endswith(_BUILD):
        return "build"
    if name.endswith(_DOCUMENTS) or path.startswith(_DATA_FOLDERS):
        return "documents"
    return None


def _folder(path: str) -> str | None:
    """Return the outermost folder in a path that a rule is about, with its path."""
    parts = path.split("/")[:-1]
    return next(("/".join(parts[: i + 1]) for i, part in enumerate(parts) if part in _FOLDERS), None)


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def _is_script_of_this_machine(item: Item) -> bool:
    if not item.is_file:
        return False
    with item.source.open("rb") as file:
        first, second = file.readline(1024), file.readline(1024)
    return first.startswith(b"#!") and (b"python" in first or second.startswith(b"'''exec'"))


def _modules_named(distributions: Iterable[Distribution]) -> set[str]:
    """Return the modules that source files outside tests and documents name, with the packages that they are in."""
    named: set[str] = set()
    for each in distributions:
        for item in each.items:
            if item.path.endswith(".py") and item.is_file and _folder(item.path) is None:
                source = item.read()
                if any(word.encode() in source for word in ("test", "doc", "example", "benchmark")):
                    named.update(_named_in(item.path, source))
    return named


def _named_in(path: str, source: bytes) -> Iterator[str]:
    for found in _DOTTED.findall(source):
        yield from _with_parents(found.decode().split("."))
    package = path.split("/")[:-1]
    for dots, module, several, one in _RELATIVE.findall(source):
        base = package[: len(package) - len(dots) + 1] + [part for part in module.decode().split(".") if part]
        yield from _with_parents(base)
        for name in re.findall(rb"\w+", several or one):
            yield ".".join([*base, name.decode(errors="replace")])


def _with_parents(parts: Sequence[str]) -> Iterator[str]:
    for count in range(1, len(parts) + 1):
        yield ".".join(parts[:count])


def _cut(item: Item, sizes: dict[str, list[int]]) -> Item:
    """Return a shared object without its symbols. Other items are returned as they are."""
    if ".so" not in _base(item.path) or not item.is_file or (read := elf.read(item.source)) is None:
        return item
    saved = item.size_bytes - read.loaded_bytes
    if not read.may_be_cut or saved <= 0:
        return item
    sizes.setdefault("symbols", []).append(saved)
    return replace(item, size_bytes=read.loaded_bytes, is_cut=True)


def _with_record(items: Sequence[Item]) -> Iterator[Item]:
    """Yield the items, with RECORD files that list them."""
    by_path = {item.path: item for item in items}
    for item in items:
        if _base(item.path) != "RECORD" or not item.path.partition("/")[0].endswith(".dist-info"):
            yield item
            continue
        rows = []
        for row in rows_of_record(item.read().decode(errors="surrogateescape")):
            recorded = by_path.get(path := recorded_path(row[0]))
            if recorded is not None:
                rows.append(_row(recorded) if recorded.is_cut else [path, *row[1:]])
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(sorted(rows))
        yield item.with_content(text.getvalue().encode(errors="surrogateescape"))


def _row(item: Item) -> list[str]:
    digest = base64.urlsafe_b64encode(hashlib.sha256(item.read()).digest()).decode().rstrip("=")
    return [item.path, f"sha256={digest}", str(item.size_bytes)]
