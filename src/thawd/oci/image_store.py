"""The store of images: verified blobs, unpacked layers and roots, with names, for any number of processes at once.

    index.json               names and the digests of their manifests; with oci-layout, the folder is an OCI layout
    blobs/sha256/HEX         manifests, configurations and layers (`thawd.oci.blobs`)
    layers/HEX/              an unpacked layer (`thawd.oci.unpacking`)
    roots/HEX/tree/          merged layers; HEX is from the digests of the layers in their order
    roots/HEX/owners         owners of the paths that do not belong to root in the image
    roots/HEX/in-use         locked (shared) while functions run in the root
    {layers,roots}/HEX/boot  the boot of the machine in which the folder was made
    {layers,roots}/HEX/synced  exists if the folder was synced to the disk
    new/NAME/                a folder that is being made; locked by new/NAME.lock until it is renamed
    lock                     locked (shared) while anything is added, and exclusively while unused things are removed

A file or folder that has its final name is complete. Blobs are synced to the disk immediately. Folders are synced when
a root is first used, not after each step of a build. A folder that was not synced before the machine was rebooted is
made again from its blobs. A process that is killed leaves folders under `new`, which the next `collect` removes. The
store trusts the files that it wrote, so its folder is accessible to its owner only.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from thawd.errors import ImageError
from thawd.oci.blobs import NEW, Blobs
from thawd.oci.documents import (
    MANIFEST,
    Descriptor,
    ImageConfig,
    Index,
    Manifest,
    ProcessConfig,
    check_platform,
    decode_config,
    decode_index,
    decode_manifest,
    encode,
    machine_architecture,
)
from thawd.oci.merging import merge
from thawd.oci.removing import remove_tree
from thawd.oci.root import Root
from thawd.oci.unpacking import read_changes, unpack
from thawd.system import folders
from thawd.system.boot import boot_id

NAME = "org.opencontainers.image.ref.name"
_TREE = "tree"
_IN_USE = "in-use"
_OWNERS = "owners"
_BOOT = "boot"
_SYNCED = "synced"
_LAYOUT = b'{"imageLayoutVersion":"1.0.0"}'
_libc = ctypes.CDLL(None, use_errno=True)


class Image(msgspec.Struct, frozen=True):
    """An image in the store.

    Attributes:
        digest: digest of the manifest.
        manifest: the manifest.
        config: the configuration.
    """

    digest: str
    manifest: Manifest
    config: ImageConfig

    @property
    def size_bytes(self) -> int:
        """Size of the layers as they are stored, compressed."""
        return sum(layer.size for layer in self.manifest.layers)


class Images:
    """A store of images.

    Args:
        folder: the store's folder; made when the first image is added. A symbolic link to the folder of another store
            shares that one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.blobs = Blobs(folder)

    @contextlib.contextmanager
    def adding(self) -> Iterator[None]:
        """Within this block, `collect` does not remove what was added and has no name yet.

        Raises:
            OSError: the folder cannot be made.
        """
        self._make_folder()
        with _locked(self.folder / "lock", fcntl.LOCK_SH):
            yield

    def names(self) -> dict[str, str]:
        """Return the names of images, with the digests of their manifests."""
        return {(each.annotations or {}).get(NAME, ""): each.digest for each in self._index().manifests}

    def set_name(self, name: str, digest: str) -> None:
        """Give an image a name, and sync that to the disk. Another image that has the name loses it.

        Args:
            name: the name.
            digest: digest of a manifest in the store.
        """
        size = self.blobs.path(digest).stat().st_size
        with self._changing_names() as named:
            named[name] = Descriptor(MANIFEST, digest, size, annotations={NAME: name})

    def remove_name(self, name: str) -> bool:
        """Remove a name. Returns whether it existed. `collect` removes what no name needs any more."""
        with self._changing_names() as named:
            return named.pop(name, None) is not None

    def image(self, digest: str) -> Image:
        """Return an image of the store.

        Raises:
            ImageError: the store does not have the digest, or it is not that of an image (HTTP 400).
        """
        manifest = decode_manifest(self.blobs.read(digest), digest)
        config = decode_config(self.blobs.read(manifest.config.digest), digest)
        if len(config.rootfs.diff_ids) != len(manifest.layers):
            raise ImageError(
                f"{digest}: its configuration lists {len(config.rootfs.diff_ids)} layers, and its manifest "
                f"{len(manifest.layers)}; build the image again"
            )
        return Image(digest, manifest, config)

    def root(self, digest: str, *, on_line: Callable[[str], None] = lambda line: None) -> Root:
        """Return the root of an image. Its layers are unpacked and merged if no image had them before.

        Args:
            digest: digest of a manifest in the store.
            on_line: called with each line of progress, and with notes about what was left out.

        Raises:
            ImageError: the image is broken, hostile, or for another architecture (HTTP 400).
            OSError: the disk failed or is full.
        """
        image = self.image(digest)
        check_platform(image.config, machine_architecture(), digest)
        blobs = [blob.digest for blob in image.manifest.layers]
        with self.adding():
            folder = self.tree(list(zip(blobs, image.config.rootfs.diff_ids, strict=True)), digest, on_line=on_line)
            self._sync(folder.parent, image.config.rootfs.diff_ids)
        config = image.config.config or ProcessConfig()
        return Root(
            folder=folder,
            digest=digest,
            env=_variables(config.env or []),
            entrypoint=list(config.entrypoint or []),
            cmd=list(config.cmd or []),
            working_dir=os.path.normpath("/" + (config.working_dir or "/").lstrip("/")),
            user=config.user or "",
            architecture=machine_architecture(),
        )

    def tree(
        self, layers: Sequence[tuple[str, str]], what: str, *, on_line: Callable[[str], None] = lambda line: None
    ) -> Path:
        """Return the folder with merged layers, which is made if it is missing. After a power cut, it is made again.

        Args:
            layers: digest of each layer's blob, and of its uncompressed tar file; the lowest first.
            what: names the image in messages.
            on_line: called with each line of progress.

        Raises:
            ImageError: a layer is missing, broken or hostile (HTTP 400).
            OSError: the disk failed or is full.
        """
        with self.adding():
            unpacked = [self._layer(blob, diff_id, on_line) for blob, diff_id in layers]
            return self._merged([diff_id for _, diff_id in layers], unpacked, what)

    def owners(self, tree: Path) -> dict[str, tuple[int, int]]:
        """Return user and group of the paths that do not belong to root in an image.

        Args:
            tree: the folder that `tree` returned. In it, all files belong to the user that unpacked them.
        """
        content = (tree.parent / _OWNERS).read_bytes()
        found = msgspec.msgpack.decode(content, type=dict[bytes, tuple[int, int]])
        return {os.fsdecode(path): owner for path, owner in found.items()}

    @contextlib.contextmanager
    def using(self, root: Root) -> Iterator[None]:
        """Within this block, `collect` does not remove a root.

        Raises:
            ImageError: the root has been removed; `root` makes it again (HTTP 400).
        """
        mark = root.folder.parent / _IN_USE
        with contextlib.ExitStack() as stack:
            try:
                lock = stack.enter_context(_locked(mark, fcntl.LOCK_SH))
                # The folder may have been removed, and made again, before its lock was taken.
                is_current = mark.stat().st_ino == os.fstat(lock).st_ino
            except FileNotFoundError:
                is_current = False
            if not is_current:
                raise ImageError(f"the folder of the image {root.digest} was removed; make it again")
            yield

    def collect(self, *, keep: Iterable[str] = ()) -> int:
        """Remove what no name needs, and what killed processes left behind.

        Args:
            keep: digests of further manifests and of single blobs to keep.

        Returns:
            Size of the blobs that were removed, bytes. Unpacked layers and roots are not counted.

        Raises:
            ImageError: another process is adding an image, or a kept manifest is broken (HTTP 400).
        """
        if not self.folder.is_dir():
            return 0
        with _locked(self.folder / "lock", fcntl.LOCK_EX, wait=False):
            blobs, layers, roots = self._needed(keep)
            for folder in self._children("roots"):
                if folder.name not in roots:
                    self._remove_unused_root(folder)
            for folder in self._children("layers"):
                if folder.name not in layers:
                    self._remove_aside(folder)
            for left in self._children("new"):
                remove_tree(left) if left.is_dir() else left.unlink()
            return self._remove_blobs(blobs)

    def _needed(self, keep: Iterable[str]) -> tuple[set[str], set[str], set[str]]:
        blobs: set[str] = set()
        layers: set[str] = set()
        roots: set[str] = set()
        for digest in {*self.names().values(), *keep}:
            blobs.add(digest)
            with contextlib.suppress(ImageError):  # a single blob, or one that is gone
                image = self.image(digest)
                blobs |= {image.manifest.config.digest, *(layer.digest for layer in image.manifest.layers)}
                layers |= {_hex(diff_id) for diff_id in image.config.rootfs.diff_ids}
                roots.add(_chain(image.config.rootfs.diff_ids))
        return blobs, layers, roots

    def _remove_blobs(self, needed: set[str]) -> int:
        freed = 0
        for blob in self._children("blobs/sha256"):
            if blob.name.startswith(NEW):
                blob.unlink()
            elif not blob.name.startswith(".") and f"sha256:{blob.name}" not in needed:
                freed += blob.stat().st_size
                blob.unlink()
        folders.remove_unfinished(self.blobs.folder)
        return freed

    def _remove_unused_root(self, folder: Path) -> None:
        try:
            with _locked(folder / _IN_USE, fcntl.LOCK_EX, wait=False):
                self._remove_aside(folder)
        except ImageError:
            return  # a function runs in it

    def _remove_aside(self, folder: Path) -> None:
        """Remove a folder. It is renamed first, so that no process finds it incomplete under its name."""
        aside = self.folder / "new" / f"gone-{os.urandom(8).hex()}"
        folders.make(aside.parent)
        folder.rename(aside)
        remove_tree(aside)

    def _layer(self, blob: str, diff_id: str, on_line: Callable[[str], None]) -> Path:
        folder = self.folder / "layers" / _hex(diff_id)
        if not _is_whole(folder):
            what = f"layer {blob}"

            def fill(new: Path) -> None:
                on_line(f"unpacking {blob[:19]}")
                unpack(self.blobs.path(blob), new, diff_id=diff_id, what=what)

            if not self.blobs.has(blob):
                raise ImageError(f"{what} is not in the store; get the image again")
            self._make(folder, fill)
            for note in read_changes(folder).notes:
                on_line(f"{blob[:19]}: {note}")
        return folder

    def _merged(self, diff_ids: list[str], layers: list[Path], what: str) -> Path:
        folder = self.folder / "roots" / _chain(diff_ids)
        if not _is_whole(folder):

            def fill(new: Path) -> None:
                new.mkdir()
                owners = merge(layers, new / _TREE, what=what)
                named = {os.fsencode(path): owner for path, owner in owners.items()}
                (new / _OWNERS).write_bytes(msgspec.msgpack.encode(named))
                (new / _IN_USE).touch(mode=0o600)

            self._make(folder, fill)
        return folder / _TREE

    def _make(self, folder: Path, fill: Callable[[Path], None]) -> None:
        """Make a folder completely or not at all. If several processes need it, one makes it and the others wait."""
        folders.make(self.folder / "new", mode=0o700)
        folders.make(folder.parent)
        with _locked(self.folder / "new" / f"{folder.parent.name}-{folder.name}.lock", fcntl.LOCK_EX):
            if _is_whole(folder):
                return
            if folder.exists():
                self._remove_aside(folder)
            new = self.folder / "new" / f"{folder.name}-{os.urandom(8).hex()}"
            try:
                fill(new)
                (new / _BOOT).write_text(boot_id())
                new.rename(folder)
            except BaseException:
                remove_tree(new)
                raise

    def _sync(self, root: Path, diff_ids: list[str]) -> None:
        """Sync a root and its layers to the disk, unless that was done before. One system call syncs all files."""
        made = [root, *(self.folder / "layers" / _hex(diff_id) for diff_id in diff_ids)]
        waiting = [folder for folder in made if not (folder / _SYNCED).exists()]
        if waiting:
            _sync_file_system(self.folder)
            for folder in waiting:
                (folder / _SYNCED).touch(mode=0o600)

    def _index(self) -> Index:
        try:
            content = (self.folder / "index.json").read_bytes()
        except FileNotFoundError:
            return Index(2, [])
        return decode_index(content, str(self.folder / "index.json"))

    @contextlib.contextmanager
    def _changing_names(self) -> Iterator[dict[str, Descriptor]]:
        self._make_folder()
        with _locked(self.folder / "names-lock", fcntl.LOCK_EX):
            named = {(each.annotations or {}).get(NAME, ""): each for each in self._index().manifests}
            yield named
            with folders.replacing(self.folder / "index.json") as file:
                file.write(encode(Index(2, [named[name] for name in sorted(named)])))

    def _make_folder(self) -> None:
        folders.make(self.folder.parent, mode=0o700)  # the data folder, if no server has made it yet
        folders.make(self.folder, mode=0o700)
        layout = self.folder / "oci-layout"
        if not layout.exists():
            with folders.replacing(layout) as file:
                file.write(_LAYOUT)

    def _children(self, name: str) -> list[Path]:
        folder = self.folder / name
        return sorted(folder.iterdir()) if folder.is_dir() else []


@contextlib.contextmanager
def _locked(path: Path, how: int, *, wait: bool = True) -> Iterator[int]:
    """Hold a lock, and yield its descriptor. The kernel releases it when the process ends, however it ends.

    Raises:
        ImageError: another process holds it, and `wait` is False.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, how if wait else how | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ImageError(f"another process uses {path.parent}; try again when it has finished") from None
        yield fd
    finally:
        os.close(fd)


def _sync_file_system(path: Path) -> None:
    """Sync the file system of a folder with one call, instead of one call for each file. Source: syncfs(2)."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.syncfs(fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(fd)


def _is_whole(folder: Path) -> bool:
    """Return whether a folder exists and is complete: it was synced, or the machine has not been rebooted since."""
    if (folder / _SYNCED).exists():
        return True
    try:
        return (folder / _BOOT).read_text() == boot_id() != ""
    except FileNotFoundError:
        return False


def _chain(diff_ids: list[str]) -> str:
    return hashlib.sha256("\n".join(diff_ids).encode()).hexdigest()


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")


def _variables(pairs: list[str]) -> dict[str, str]:
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs) if name}
