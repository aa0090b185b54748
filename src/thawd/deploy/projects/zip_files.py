"""Makes reproducible zip files: the same files give the same bytes."""

from __future__ import annotations

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


def archive(sources: Sequence[Source]) -> bytes:
    """A zip file of the sources. Of two files with one name, the last counts. Symbolic links are followed.

    Raises:
        OSError: a file cannot be read.
    """
    found: dict[str, Path] = {}
    for source in sources:
        if source.path.is_file():
            found[source.name] = source.path
        else:
            prefix = f"{source.name}/" if source.name else ""
            is_packaged = _Patterns(source)
            found.update({prefix + name: path for name, path in _files(source.path) if is_packaged(name)})
    compression = zipfile.ZIP_DEFLATED
    if sum(path.stat().st_size for path in found.values()) > _COMPRESSED_BYTES:
        compression = zipfile.ZIP_STORED
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as made:
        for name in sorted(found):
            entry = zipfile.ZipInfo(name, _THEN)
            runs = found[name].stat().st_mode & stat.S_IXUSR
            entry.external_attr = (stat.S_IFREG | (0o755 if runs else 0o644)) << 16
            entry.create_system = 3  # Unix: the modes count
            made.writestr(entry, found[name].read_bytes(), compression)
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


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """The files of a folder with their names in it, without those that no function needs."""
    seen: set[tuple[int, int]] = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        here = Path(place)
        status = here.stat()
        if (status.st_dev, status.st_ino) in seen:  # a link to a folder above
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(
            each for each in folders if each not in _LEFT_OUT and not (here / each / _VIRTUAL_ENVIRONMENT).exists()
        )
        for name in names:
            if name not in _LEFT_OUT and not name.endswith(".pyc") and (here / name).is_file():
                yield (here / name).relative_to(folder).as_posix(), here / name
