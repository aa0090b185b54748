"""Reads requirements files: which texts decide what is installed, and whether only pip can install a file correctly.

This module installs nothing. pip and uv read the same files but treat a few kinds of lines differently. This module
recognises these lines, and pip installs the files that contain them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from thawd.errors import EnvironmentBuildError

_COMMENT = re.compile(r"(^|\s+)#.*$")
_REFERENCE = re.compile(r"(?:-r|-c|--requirement\b|--constraint\b)\s*=?\s*(\S.*)")
_EDITABLE = re.compile(r"(?:-e|--editable\b)\s*=?\s*")
_OPTION = re.compile(r"--[a-z-]+|-[a-zA-Z]")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NAMED = re.compile(r"[\w.-]+\s*(?:\[[^\]]*\])?\s*@\s*(.*)")
_REMOTE = re.compile(r"(?:https?|(?:git|hg|svn|bzr)\+[a-z]+)://")
_ARCHIVES = (".whl", ".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
# Options in a requirements file that have the same effect in uv as in pip. uv ignores others, such as --pre. Tested
# with uv 0.13.
_KNOWN_TO_UV = {
    *("-r", "--requirement", "-c", "--constraint", "-i", "--index-url", "--extra-index-url", "-f", "--find-links"),
    *("--no-index", "--no-binary", "--only-binary", "--require-hashes"),
}
_HASH = "--hash"
_USER = re.compile(r"//[^/@]*@")
_NO_BINARY = re.compile(r"(?:^|\s)--no-binary\b\s*=?\s*(\S*)")


class _Line(NamedTuple):
    """One line of a requirements file, without comments and continuations."""

    text: str
    folder: Path


def contents(file: Path) -> Iterator[str]:
    """Yield everything that decides what is installed, as texts.

    These are the text of the file, the texts of the requirements files that it names, and the folder of a file in which
    a line may contain a relative path. For a local archive, its path, size and modification time are yielded and not
    its content, because reading gigabytes would take too long. For the content of a local folder, nothing is yielded.

    Raises:
        EnvironmentBuildError: `file` cannot be read.
    """
    for part in _read(file, seen=set()):
        if isinstance(part, str):
            yield part


def is_empty(file: Path) -> bool:
    """Return whether the file has no requirement and no option.

    Raises:
        EnvironmentBuildError: `file` cannot be read.
    """
    return not any(isinstance(part, _Line) for part in _read(file, seen=set()))


def why_pip(file: Path) -> str | None:
    """Return why only pip can install the file correctly; None: uv can install it, too.

    Raises:
        EnvironmentBuildError: `file` cannot be read.
    """
    for part in _read(file, seen=set()):
        if isinstance(part, _Line) and (reason := _why_pip(part)) is not None:
            return reason
    return None


def wants_hashes(file: Path) -> bool:
    """Return whether any requirement has a hash. If one has, pip requires hashes for all.

    Raises:
        EnvironmentBuildError: `file` cannot be read.
    """
    return any(isinstance(part, _Line) and _HASH in part.text for part in _read(file, seen=set()))


def names(file: Path) -> Iterator[str]:
    """Yield the name of each package that the file requires, also in files that it names. Some may appear twice.

    For a path or URL of an archive, the beginning of the archive's name is yielded; for a folder, nothing.

    Raises:
        EnvironmentBuildError: `file` cannot be read.
    """
    for part in _read(file, seen=set()):
        if not isinstance(part, _Line) or part.text.startswith("-"):
            continue
        where = re.split(r"[;#?]|\s--", part.text)[0].strip()
        if _NAMED.fullmatch(where) is None and (where.endswith(_ARCHIVES) or "/" in where):
            where = where.rpartition("/")[2].partition("-")[0] if where.endswith(_ARCHIVES) else ""
        if (name := _NAME.match(where)) is not None:
            yield name[0]


def why_built(file: Path) -> str | None:
    """Return which line of the file asks for a package that must be built; None: there is no such line.

    Raises:
        EnvironmentBuildError: `file` cannot be read.
    """
    for part in _read(file, seen=set()):
        if isinstance(part, _Line) and (reason := _why_built(part)) is not None:
            return reason
    return None


def _why_built(line: _Line) -> str | None:
    if (found := _NO_BINARY.search(line.text)) is not None and _unquoted(found[1]).strip() != ":none:":
        return f"it has the option --no-binary {found[1].strip()}"
    if _REFERENCE.fullmatch(line.text):
        return None
    if (editable := _EDITABLE.match(line.text)) is not None:
        return f"{line.text[editable.end() :]} is to be installed as editable"
    if line.text.startswith("-"):
        return None
    where = re.split(r";\s|\s;|\s--", line.text)[0].strip()
    if (named := _NAMED.fullmatch(where)) is not None:
        where = named[1]
    path = re.split(r"[#?]", where)[0]
    is_place = "/" in path or path.startswith(".") or path.endswith(_ARCHIVES)
    if not is_place or path.endswith(".whl"):
        return None
    where = _USER.sub("//", where)
    return f"{where} is {'a source archive' if path.endswith(_ARCHIVES) else 'no wheel'}"


def _why_pip(line: _Line) -> str | None:
    requirement, *options = re.split(r"(?:^|\s+)(?=--?[a-zA-Z])", line.text)
    for option in options:
        name = _OPTION.match(option)
        if name is not None and name[0] != _HASH and name[0] not in _KNOWN_TO_UV:
            return f"it has the option {name[0]}"
    where = requirement.split(";")[0].strip()
    if (named := _NAMED.fullmatch(where)) is not None:
        where = named[1]
    is_path = "/" in where or where.startswith(".")
    if not is_path or _REMOTE.match(where) or where.endswith(_ARCHIVES):
        return None
    # uv caches what it has built from a folder, and does not notice every change in the folder.
    return f"{where} is a folder"


def _read(file: Path, *, seen: set[Path]) -> Iterator[str | _Line]:
    seen.add(file)
    try:
        text = file.read_bytes().decode(errors="surrogateescape")
    except OSError as error:
        message = f"The requirements file {file} cannot be read: {error.strerror}; correct its path or permissions."
        raise EnvironmentBuildError(message) from error
    yield text
    for line in text.replace("\\\n", "").splitlines():
        named = _COMMENT.sub("", line).strip()
        if not named:
            continue
        yield _Line(named, file.parent)
        if named.startswith("-") or "/" in named:
            # The line may contain a path relative to this folder, so its meaning depends on the folder.
            yield str(file.parent)
        reference = _REFERENCE.fullmatch(named)
        path = file.parent / _unquoted(reference[1] if reference else _EDITABLE.sub("", named))
        # Let pip report missing files: the text may contain a variable, or may not be a path at all.
        if not _is_file(path):
            continue
        if not reference:
            status = path.stat()
            yield f"{path} {status.st_size} {status.st_mtime_ns}"
        elif path not in seen:
            yield from _read(path, seen=seen)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False  # The text is too long for a path, or names a folder that thawd may not enter.


def _unquoted(text: str) -> str:
    try:
        return " ".join(shlex.split(text))
    except ValueError:
        return text
