"""Makes reproducible zip files: the same files give the same bytes."""

from __future__ import annotations

import errno
import io
import os
import stat
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from wcmatch import glob

# Files that no function needs: version control, caches, output of other tools and thawd, virtual environments.
_LEFT_OUT = {
    ".git", ".hg", ".svn", ".thawd", ".aws-sam", ".serverless", ".mypy_cache", ".pytest_cache", ".ruff_cache",
    "cdk.out", "__pycache__", ".DS_Store",
}  # fmt: skip
_VIRTUAL_ENVIRONMENT = "pyvenv.cfg"
# The first time that a zip file can have.
_THEN = (1980, 1, 1, 0, 0, 0)
# Above this, compressing takes longer than writing what it would save.
_COMPRESSED_BYTES = 32 << 20
# Errors of links to nothing: to a missing file, to something below a file, and in a circle.
_TO_NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
# The globs of the JavaScript tools whose files thawd reads.
_GLOB = glob.GLOBSTAR | glob.DOTGLOB | glob.BRACE | glob.EXTGLOB


class Source(NamedTuple):
    """A file or a folder that goes into a zip file.

    Attributes:
        path: the file or folder.
        name: the folder in the zip file, or "" for its root; of a file, its name.
        patterns: globs. For each file of the folder, the last matching glob decides. One with ``!`` leaves it out.
        within: path of the folder, relative to the folder to which the patterns are relative; "": they are the same.
    """

    path: Path
    name: str
    patterns: tuple[str, ...] = ()
    within: str = ""


def archive(sources: Sequence[Source], *, compresses: bool = True) -> bytes:
    """A zip file of the sources. Of two files with one name, the last counts. Symbolic links are followed.

    Args:
        sources: files and folders.
        compresses: whether the files are compressed, if together they have less than 32 MiB.

    Raises:
        OSError: a file cannot be read.
    """
    found: dict[str, tuple[str, os.stat_result]] = {}
    for source in sources:
        if source.path.is_file():
            found[source.name] = str(source.path), source.path.stat()
        else:
            prefix = f"{source.name}/" if source.name else ""
            is_packaged = _Patterns(source)
            found.update({prefix + name: file for name, file in _files(source.path) if is_packaged(name)})
    compression = zipfile.ZIP_DEFLATED
    if not compresses or sum(status.st_size for _, status in found.values()) > _COMPRESSED_BYTES:
        compression = zipfile.ZIP_STORED
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as made:
        for name in sorted(found):
            path, status = found[name]
            entry = zipfile.ZipInfo(name, _THEN)
            runs = status.st_mode & stat.S_IXUSR
            entry.external_attr = (stat.S_IFREG | (0o755 if runs else 0o644)) << 16
            entry.create_system = 3  # Unix: the modes count
            made.writestr(entry, Path(path).read_bytes(), compression)
    return content.getvalue()


class _Patterns:
    """Decides which files of a folder are packaged.

    Args:
        source: the folder, with its patterns.
    """

    def __init__(self, source: Source) -> None:
        self._within = f"{source.within.strip('/')}/" if source.within else ""
        self._rules = [(glob.compile(each.removeprefix("!"), flags=_GLOB), each[0] != "!") for each in source.patterns]

    def __call__(self, name: str) -> bool:
        """Whether a file, named relative to the folder, is packaged."""
        seen = self._within + name
        return next((keeps for rule, keeps in reversed(self._rules) if rule.match(seen)), True)


def _files(folder: Path) -> Iterator[tuple[str, tuple[str, os.stat_result]]]:
    """The files of a folder, without those that no function needs: the name in it, the path, and the status."""
    seen: set[tuple[int, int]] = set()
    root = str(folder)
    for here, folders, names in os.walk(root, followlinks=True):
        status = Path(here).stat()
        if (status.st_dev, status.st_ino) in seen:  # a link to a folder above
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(
            each for each in folders if each not in _LEFT_OUT and not Path(here, each, _VIRTUAL_ENVIRONMENT).exists()
        )
        prefix = f"{os.path.relpath(here, root)}/" if here != root else ""
        for name in names:
            if name in _LEFT_OUT or name.endswith(".pyc"):
                continue
            path = f"{here}/{name}"
            try:
                status = os.stat(path)  # noqa: PTH116 - for each of thousands of files
            except OSError as error:
                if error.errno in _TO_NOTHING:
                    continue
                raise
            if stat.S_ISREG(status.st_mode):
                yield prefix + name, (path, status)
