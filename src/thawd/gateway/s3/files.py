"""Objects as files: writes that become visible in one step, reads of a single version, removal. All functions block.

The object of a PUT is written to a file in a hidden folder of the same file system, synced to the disk, and renamed.
A server that crashes may leave files in that folder; the next server removes them before its first write to the bucket.
The hidden folder also contains the parts of multipart uploads; see the module `parts`.
"""
# Keys and paths are bytes here, which pathlib does not accept.
# ruff: noqa: PTH102, PTH104, PTH106, PTH108, PTH112, PTH114, PTH118, PTH120

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
import threading
import time

from thawd.gateway.s3.xml import S3Error
from thawd.resources import Bucket
from thawd.stores.objects.folder import MAX_KEY_BYTES, STAGING, BucketFolder, is_hidden
from thawd.system import folders

PARTS_OF = b"upload-"
"""Prefix of the names of the folders that contain the parts of multipart uploads."""
ABANDONED_S = 24 * 3600.0
"""After this many seconds without a new part, an unfinished multipart upload counts as abandoned and is removed."""
# How often an upload tries to give its file a name while other uploads make and remove folders.
_PLACINGS = 5
# Prefix of the names of folders that are being removed.
_REMOVED = b"gone-"


def check_key(key: bytes) -> None:
    """Refuse a key that cannot be the path of an object in a bucket's folder.

    Raises:
        S3Error: the key cannot be used; the message says why (400).
    """
    shown = key[:200].decode("utf-8", "replace")
    if len(key) > MAX_KEY_BYTES:
        raise S3Error(400, "KeyTooLongError", f"The key has {len(key)} bytes; at most {MAX_KEY_BYTES} are allowed")
    if b"\0" in key:
        raise S3Error(400, "InvalidArgument", f"The key {shown!r} contains a NUL byte; use a key without it")
    if key.startswith(b"/") or key.endswith(b"/") or b"//" in key:
        raise S3Error(
            400, "InvalidArgument", f"The key {shown!r} has an empty part; use the path of a file such as a/b.png"
        )
    if is_hidden(key):
        raise S3Error(
            400,
            "InvalidArgument",
            f"The key {shown!r} has a part that begins with a dot; objects cannot be hidden files",
        )


class Upload:
    """An object that is being uploaded.

    Call `consume` as data arrives, then `publish` or `move`. Always call `discard` at the end. When the server stops,
    it may call `discard` while another thread still uses the upload; the next call by that thread raises OSError.

    Args:
        root: the bucket's folder.

    Attributes:
        root: the bucket's folder.
    """

    def __init__(self, root: bytes) -> None:
        self.root = root
        self._path = os.path.join(root, STAGING, secrets.token_hex(16).encode())
        self._fd = -1
        self._lock = threading.Lock()
        self._discarded = False

    def consume(self, data: bytes) -> None:
        """Append `data`.

        Raises:
            OSError: `data` cannot be written.
        """
        with self._lock:
            self._require_open()
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]

    def publish(self, key: bytes, *, exclusive: bool) -> os.stat_result:
        """Sync the object to the disk and rename it to its key.

        Args:
            key: the object's key, already checked.
            exclusive: whether to fail when an object with this key exists.

        Returns:
            The file's stat result from before the rename.

        Raises:
            S3Error: the key cannot be used (400), or `exclusive` is set and the object exists (412).
            OSError: the object cannot be written.
        """
        with self._lock:
            self._require_open()
            target = _path(self.root, key)
            os.fsync(self._fd)
            found = os.fstat(self._fd)
            # Close the file before the rename, because a bucket's watcher treats a file open for writing as incomplete.
            self._close()
            self._place(target, key, exclusive=exclusive)
            folders.sync(os.path.dirname(target))
        return found

    def _place(self, target: bytes, key: bytes, *, exclusive: bool) -> None:
        """Give the file its name, in place of folders without files: S3 has no folders, so nothing is in the way."""
        for left in reversed(range(_PLACINGS)):
            try:
                _make_folders(self.root, key)
                if exclusive:
                    os.link(self._path, target, follow_symlinks=False)
                else:
                    os.rename(self._path, target)
            except (IsADirectoryError, FileExistsError):  # not of `_make_folders`, which raises neither
                is_folder = os.path.isdir(target) and not os.path.islink(target)
                if exclusive and not is_folder and os.path.lexists(target):
                    raise S3Error(412, "PreconditionFailed", "An object with this key already exists") from None
                if not left or (is_folder and not _remove_empty(target)):
                    raise
            except FileNotFoundError:  # another upload may just have removed a folder of this one as empty
                if not left:
                    raise
            else:
                return

    def move(self, target: bytes) -> None:
        """Sync the data to the disk and rename it to `target`, a file of the same file system.

        Raises:
            OSError: the file cannot be written.
        """
        with self._lock:
            self._require_open()
            os.fsync(self._fd)
            self._close()
            os.rename(self._path, target)
            folders.sync(os.path.dirname(target))

    def discard(self) -> None:
        """Remove the staged file unless it was published or moved. Never raises."""
        with self._lock:
            self._discarded = True
            with contextlib.suppress(OSError):
                self._close()
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def _require_open(self) -> None:
        if self._discarded:
            raise OSError(errno.ECANCELED, "the upload was cancelled")
        if self._fd >= 0:
            return
        make_staging(self.root)
        while True:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            # The lock prevents `clear_staging` in this or another server with the same bucket from removing the file.
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:
                break
            # The file was removed before it was locked: make another.
            os.close(fd)
        self._fd = fd

    def _close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def make_staging(root: bytes) -> None:
    """Make the hidden folder for uploads. A missing bucket folder is not made, because the operator has removed it.

    Raises:
        OSError: the folder cannot be made.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(os.path.join(root, STAGING), 0o700)


def clear_staging(root: bytes, *, files: bool) -> None:
    """Remove abandoned multipart uploads and, if `files` is set, files left by crashed servers. Never raises.

    Args:
        root: the bucket's folder.
        files: whether to remove all files that no process has locked. A running server locks the file of each upload,
            but not in the moment between closing the file and renaming it. So a server sets this only before its own
            first upload to the bucket.
    """
    with contextlib.suppress(OSError), os.scandir(os.path.join(root, STAGING)) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    age_s = time.time() - entry.stat(follow_symlinks=False).st_mtime
                    if entry.name.startswith(_REMOVED) or (entry.name.startswith(PARTS_OF) and age_s > ABANDONED_S):
                        remove_parts(entry.path)
                elif files:
                    folders.remove_unlocked(entry.path)


def remove_parts(folder: bytes) -> None:
    """Rename the folder of a multipart upload, so that no part can be added, and remove the folder. Never raises."""
    removed = os.path.join(os.path.dirname(folder), _REMOVED + secrets.token_hex(16).encode())
    with contextlib.suppress(OSError):
        os.rename(folder, removed)
        shutil.rmtree(removed, ignore_errors=True)


def open_object(root: bytes, key: bytes) -> tuple[int, os.stat_result]:
    """Open an object for reading; returns a descriptor and the stat result of the open file.

    Raises:
        S3Error: there is no such object (404).
        OSError: the object cannot be read.
    """
    located = BucketFolder(root).locate(key)
    if located is None:
        raise no_such_key(key)
    try:
        fd = os.open(located.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise no_such_key(key) from None
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise no_such_key(key)
    return fd, found


def remove_object(root: bytes, key: bytes) -> None:
    """Remove an object; a missing object is not an error.

    Raises:
        OSError: the object cannot be removed.
    """
    folder = BucketFolder(root)
    path = folder.path(key)
    if path is None or folder.locate(key) is None:
        return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
        folders.sync(os.path.dirname(path))


def no_such_key(key: bytes) -> S3Error:
    """The error for a key without an object."""
    return S3Error(404, "NoSuchKey", f"There is no object {key.decode('utf-8', 'replace')!r}")


def _path(root: bytes, key: bytes) -> bytes:
    path = BucketFolder(root).path(key)
    if path is None:
        raise S3Error(
            400,
            "InvalidArgument",
            "The path of this key goes through a symbolic link; use a key whose folders are real folders of the bucket",
        )
    return path


def _make_folders(root: bytes, key: bytes) -> None:
    """Create the folders in a key and sync them to the disk."""
    folder = root
    for part in key.split(b"/")[:-1]:
        above, folder = folder, os.path.join(folder, part)
        try:
            os.mkdir(folder)
        except FileExistsError:
            continue
        folders.sync(above)


def _remove_empty(folder: bytes) -> bool:
    """Remove a folder that contains nothing but empty folders; returns whether it is gone."""
    try:
        for inner, _, _ in os.walk(folder, topdown=False):
            os.rmdir(inner)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def explained(error: OSError, bucket: Bucket) -> S3Error:
    """The S3 error for an error of the operating system."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return S3Error(
            503,
            "SlowDown",
            f"The disk of bucket {bucket.name} ({bucket.path}) is full; nothing was stored. Free disk space and retry",
        )
    if error.errno == errno.ENAMETOOLONG:
        return S3Error(
            400, "KeyTooLongError", "A part of the key between slashes is longer than a file name may be (255 bytes)"
        )
    # A folder of the key that is missing again and again is removed by others that need a file there.
    is_gone = error.errno == errno.ENOENT and bucket.path.is_dir()
    if is_gone or error.errno in (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY):
        return S3Error(
            409,
            "OperationAborted",
            "The key conflicts with that of an existing object: one path would have to be both a file and a folder",
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return S3Error(
            403,
            "AccessDenied",
            f"The operating system does not permit the operation in {bucket.path} ({error.strerror}); change the "
            "permissions",
        )
    if error.errno == errno.ENOENT:
        return S3Error(404, "NoSuchBucket", f"The folder of bucket {bucket.name} ({bucket.path}) does not exist")
    return S3Error(500, "InternalError", f"The operation failed in {bucket.path}: {error.strerror or error}")
