"""Merges unpacked layers into one folder by hard links, with the effect of extracting their tar files in order.

The merged folder contains hard links to the layers' files. So its files take no disk space, and processes share their
pages in memory. No process may write to them. Creating a hard link does not require permission to read the file. If the
file system has no hard links, the files are copied.

Source: image-spec, layer.md, "Applying Changesets".
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

from thawd.errors import ImageError
from thawd.oci.image_paths import resolve_folder
from thawd.oci.removing import remove_tree
from thawd.oci.unpacking import TREE, Changes, read_changes


def merge(layers: Sequence[Path], folder: Path, *, what: str) -> dict[str, tuple[int, int]]:
    """Merge unpacked layers into a new folder.

    Args:
        layers: folders of the layers, the lowest first.
        folder: folder to make. After an error it is incomplete, and the caller removes it.
        what: names the image in messages.

    Returns:
        User id and group id of each path that does not belong to root in the image.

    Raises:
        ImageError: the layers do not fit together (HTTP 400).
        OSError: the disk failed or is full.
    """
    folder.mkdir()
    merging = _Merging(str(folder), what)
    for layer in layers:
        merging.add(layer)
    return merging.finish()


class _Merging:
    """The result while layers are added to it.

    Args:
        root: the folder.
        what: names the image in messages.
    """

    def __init__(self, root: str, what: str) -> None:
        self._root = root
        self._what = what
        self._modes: dict[str, int] = {}
        self._owners: dict[str, tuple[int, int]] = {}
        self._can_link = True

    def add(self, layer: Path) -> None:
        """Add a layer above those that were added before."""
        changes = read_changes(layer)
        for path in (*changes.opaque, *(removed.rpartition(b"/")[0] for removed in changes.removed)):
            self._make_room(path, changes)
        for opaque in changes.opaque:
            folder = self._existing(opaque)
            for name in os.listdir(folder) if folder else ():
                self._remove(f"{folder}/{name}")
        for removed in changes.removed:
            parent, _, name = os.fsdecode(removed).rpartition("/")
            folder = self._existing(os.fsencode(parent))
            if folder:
                self._remove(f"{folder}/{name}")
        self._add_tree(str(layer / TREE), changes)
        for path, target in changes.links.items():
            self._link_to_lower(os.fsdecode(path), os.fsdecode(target))

    def finish(self) -> dict[str, tuple[int, int]]:
        """Set the folders' modes, after all files have been written. Returns the owners.

        A layer may have replaced a folder of a lower layer by a link. The recorded paths below that folder would then
        lead through the link, out of the image. They are left out.
        """
        real = {self._root}
        start = len(self._root) + 1
        owners = {path[start:]: owner for path, owner in self._owners.items() if self._is_inside(path, real)}
        folders = [path for path in self._modes if self._is_inside(path, real) and stat.S_ISDIR(_mode(path) or 0)]
        for path in sorted(folders, reverse=True):
            os.chmod(path, self._modes[path] | 0o500)  # the owner's right to read stays, for copies of the tree
        os.chmod(self._root, 0o755)
        return owners

    def _is_inside(self, path: str, real: set[str]) -> bool:
        """Return whether `path` exists and no folder above it is a link.

        Args:
            path: the path.
            real: folders that are known to fulfil this. Further ones are added.
        """
        unknown = []
        above = os.path.dirname(path)
        while above not in real:
            unknown.append(above)
            above = os.path.dirname(above)
        for folder in reversed(unknown):
            if not stat.S_ISDIR(_mode(folder) or 0):
                return False
            real.add(folder)
        return _mode(path) is not None

    def _make_room(self, path: bytes, changes: Changes) -> None:
        """Remove files and links that are in the place of folders of the layer, before its whiteouts are applied.

        The whiteouts concern the layer's own folders. A link in the place of a folder would apply them elsewhere.

        Args:
            path: a folder in which the layer has a whiteout.
            changes: the layer's changes.
        """
        parts = path.split(b"/")
        for count in range(1, len(parts) + 1):
            named = b"/".join(parts[:count])
            if named not in changes.folders:
                continue
            parent = self._existing(named.rpartition(b"/")[0])
            if parent is None:
                return
            place = f"{parent}/{os.fsdecode(parts[count - 1])}"
            found = _mode(place)
            if found is not None and not stat.S_ISDIR(found):
                os.unlink(place)

    def _existing(self, path: bytes) -> str | None:
        parts = os.fsdecode(path).split("/")
        return resolve_folder(self._root, parts, what=f"{self._what}: {os.fsdecode(path)!r}")

    def _add_tree(self, tree: str, changes: Changes) -> None:
        waiting = [(tree, self._root)]
        while waiting:
            source, target = waiting.pop()
            with os.scandir(source) as entries:
                for entry in entries:
                    path = f"{target}/{entry.name}"
                    inside = os.fsencode(entry.path[len(tree) + 1 :])
                    self._own(path, changes, inside)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append((entry.path, self._folder(path, inside, changes.folders.get(inside))))
                    else:
                        self._place(entry.path, path)

    def _own(self, path: str, changes: Changes, inside: bytes) -> None:
        """Record the owner that the layer gives a path. A folder that the layer does not name keeps its owner."""
        owner = changes.owners.get(inside)
        if owner is not None:
            self._owners[path] = owner
        elif inside in changes.folders or not os.path.isdir(path):
            self._owners.pop(path, None)

    def _folder(self, path: str, inside: bytes, mode: int | None) -> str:
        """Make or keep the folder at `path`, and return where its contents go.

        Args:
            path: place of the folder.
            inside: its path in the layer.
            mode: the folder's mode; None: the layer has files in the folder, but no entry for the folder itself.
        """
        found = _mode(path)
        if mode is None and found is not None and stat.S_ISLNK(found):
            parts = [*path[len(self._root) + 1 :].split("/")]
            what = f"{self._what}: the folder {os.fsdecode(inside)!r}"
            through = resolve_folder(self._root, parts, what=what, make=os.mkdir)
            assert through is not None
            return through
        if found is not None and not stat.S_ISDIR(found):
            os.unlink(path)
            found = None
        if found is None:
            os.mkdir(path)
        if mode is not None:
            self._modes[path] = mode
        return path

    def _place(self, source: str, path: str) -> None:
        self._remove(path)
        if self._can_link:
            try:
                os.link(source, path, follow_symlinks=False)
            except PermissionError:  # the error of a file system without hard links; link(2)
                self._can_link = False
            except OSError as error:
                if error.errno != errno.EMLINK:  # otherwise the file has as many links as it can have
                    raise
            else:
                return
        shutil.copy2(source, path, follow_symlinks=False)

    def _link_to_lower(self, path: str, target: str) -> None:
        what = f"{self._what}: {path!r}, a hard link to {target!r}"
        *folders, name = target.split("/")
        parent = resolve_folder(self._root, folders, what=what)
        source = f"{parent}/{name}"
        found = _mode(source) if parent else None
        if found is None or stat.S_ISDIR(found):
            raise ImageError(f"{what}, which the image does not have")
        *folders, name = path.split("/")
        parent = resolve_folder(self._root, folders, what=what, make=os.mkdir)
        place = f"{parent}/{name}"
        if source.startswith(f"{place}/"):
            raise ImageError(f"{what}, which lies in a folder that the link would replace")
        if source != place:
            self._place(source, place)

    def _remove(self, path: str) -> None:
        found = _mode(path)
        if found is None:
            return
        if stat.S_ISDIR(found):
            remove_tree(Path(path))
        else:
            os.unlink(path)


def _mode(path: str) -> int | None:
    try:
        return os.lstat(path).st_mode
    except FileNotFoundError:
        return None
