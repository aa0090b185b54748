"""RUN: runs a command with a copy of the image so far as its root, and finds what it changed.

The image's folder contains hard links to layers that other images share, so the command gets a copy. Afterwards, the
copy is compared with the record that was made of its files: a file that the command wrote has another change time.

User ids: if thawd runs as root, the command has the machine's ids, and files have the owners that the image's layers
name. Otherwise, the command has only the id of root, which is mapped to the user. Then `chown` to other users fails,
and programs that need other users, such as `apt-get`, do not work.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from thawd.errors import ImageError
from thawd.oci.image_paths import resolve_folder
from thawd.oci.layer_writing import NewEntry, add_parents

_PROGRAM = Path(__file__).with_name("run_process.py")
_WHITEOUT = ".wh."
_IDS = 65536
_OF_THE_HOST = ("etc/resolv.conf", "etc/hosts")
_WAY_OUT = (
    "Allow it (`sysctl kernel.unprivileged_userns_clone=1`, or on Ubuntu "
    "`kernel.apparmor_restrict_unprivileged_userns=0`), or build the image elsewhere and name its file as "
    "`docker-archive:FILE`"
)


@dataclass(frozen=True, slots=True)
class Command:
    """A command to run in an image.

    Attributes:
        arguments: program and arguments.
        env: environment variables.
        working_dir: absolute path in the image.
        uid: user.
        gid: group.
        scratch: absolute paths of folders whose contents are not kept (``--mount=type=cache`` and ``tmpfs``).
        binds: files and folders of this machine, with the absolute paths in the image where the command sees them.
    """

    arguments: Sequence[str]
    env: Mapping[str, str]
    working_dir: str
    uid: int = 0
    gid: int = 0
    scratch: tuple[str, ...] = ()
    binds: tuple[tuple[Path, str], ...] = ()


@dataclass(slots=True)
class _Before:
    """The record of a copy before the command ran.

    Attributes:
        files: by path, values that differ if the file has changed.
        made: paths that are not in the image.
        modes: modes in the image of folders that have more permissions in the copy.
    """

    files: dict[str, tuple[int, ...]] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)
    modes: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Places:
    """Paths in the copy where the command's process mounts something; links were resolved in the copy."""

    dev: str = ""
    proc: str = ""
    scratch: list[str] = field(default_factory=list)
    binds: list[tuple[str, str]] = field(default_factory=list)


def run(
    root: Path,
    work: Path,
    command: Command,
    on_line: Callable[[str], None],
    *,
    owners: Mapping[str, tuple[int, int]] | None = None,
) -> dict[str, NewEntry]:
    """Run a command, and return the entries of the layer with its changes.

    Args:
        root: folder of the image so far; it is not changed.
        work: new folder for the copy. The entries refer to files in it, and the caller removes it.
        command: the command.
        on_line: called with each line of its output.
        owners: user and group of the paths that do not belong to root; used if thawd runs as root.

    Raises:
        ImageError: the kernel refuses namespaces, or the command failed; with its status and last lines (HTTP 400).
        OSError: the disk failed or is full.
    """
    modes = _copy(root, work)
    for path, (uid, gid) in (owners or {}).items() if os.geteuid() == 0 else ():
        if os.path.lexists(work / path):
            os.chown(work / path, uid, gid, follow_symlinks=False)
    before = _Before(modes=modes)
    with tempfile.TemporaryDirectory(dir=work.parent, prefix="host-") as host:
        places = _prepare(work, command, before, Path(host))
        for path, found in _walk(work):
            before.files[path] = _state(found)
        _run(work, command, places, on_line)
    return _changes(work, before)


def _copy(root: Path, work: Path) -> dict[str, int]:
    """Copy a tree with modes and times. The owner gets all permissions on folders, so that files can be put into them.

    Returns:
        Modes in the image of the folders whose permissions were extended.
    """
    work.mkdir()
    modes: dict[str, int] = {}
    for path, found in _walk(root):
        target = work / path
        if stat.S_ISDIR(found.st_mode):
            target.mkdir(mode=0o700)
            mode = stat.S_IMODE(found.st_mode)
            if mode & 0o700 != 0o700:
                modes[path] = mode
            target.chmod(mode | 0o700)
        elif stat.S_ISLNK(found.st_mode):
            target.symlink_to(os.readlink(root / path))
        else:
            shutil.copyfile(root / path, target)
            target.chmod(stat.S_IMODE(found.st_mode))
            os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
    work.chmod(0o755)
    return modes


def _prepare(work: Path, command: Command, before: _Before, host: Path) -> _Places:
    """Make the paths of mounts. They are left out of the layer unless the image contains them.

    Args:
        work: the copy of the image.
        command: the command.
        before: the record of the copy, to which entries are added.
        host: folder for copies of this machine's files: a command may write to them.
    """
    top = str(work)

    def make(path: str) -> None:
        os.mkdir(path)
        before.made.add(path[len(top) + 1 :])

    def folder(path: str, make: Callable[[str], None] = make) -> str:
        found = resolve_folder(top, path.split("/"), what=f"RUN: {path}", make=make)
        assert found is not None
        return found

    def file(path: str) -> str | None:
        """Return the path of a file, which is made if it is missing; None: something else is there."""
        parent, _, name = path.rpartition("/")
        found = f"{folder(parent)}/{name}"
        if not os.path.lexists(found):
            Path(found).touch()
            before.made.add(found[len(top) + 1 :])
        return found if os.path.isfile(found) and not os.path.islink(found) else None

    os.chmod(folder("tmp"), 0o1777)
    folder(command.working_dir, os.mkdir)
    places = _Places(folder("dev"), folder("proc"), [folder(path) for path in command.scratch])
    for name in _OF_THE_HOST:
        if Path("/", name).exists() and (target := file(name)) is not None:
            copy = host / Path(name).name
            shutil.copyfile(f"/{name}", copy)
            places.binds.append((str(copy), target))
    for source, path in command.binds:
        found = folder(path) if source.is_dir() else file(path)
        if found is None:
            raise ImageError(f"RUN: {path} is a link or a folder in the image, and a file cannot be mounted there")
        places.binds.append((str(source), found))
    return places


def _run(work: Path, command: Command, places: _Places, on_line: Callable[[str], None]) -> None:
    request = {
        "root": str(work),
        "command": list(command.arguments),
        "env": dict(command.env),
        "working_dir": command.working_dir,
        "uid": command.uid,
        "gid": command.gid,
        "dev": places.dev,
        "proc": places.proc,
        "scratch": places.scratch,
        "binds": places.binds,
    }
    request_read, request_write = os.pipe()
    answers_read, answers_write = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", _PROGRAM, str(request_read), str(answers_write)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(request_read, answers_write),
            cwd="/",
            start_new_session=True,
        )
    finally:
        os.close(request_read)
        os.close(answers_write)
    with process, open(request_write, "wb", buffering=0) as requests, open(answers_read, "rb", buffering=0) as answers:
        try:
            requests.write(json.dumps(request).encode() + b"\n")
            if answers.read(1) != b"U":
                raise _refused(_rest(answers) or "its process ended")  # noqa: TRY301 - the process is killed below
            _map_ids(process.pid, command)
            requests.write(b"\n")
            last: list[str] = []
            assert process.stdout is not None
            for line in process.stdout:
                last = [*last[-19:], line.decode(errors="replace").rstrip()]
                on_line(last[-1])
            failed = _rest(answers)
            status = process.wait()
        except BaseException:
            process.kill()
            raise
    if failed:
        raise _refused(failed)
    if status != 0:
        lines = "".join(f"\n    {line}" for line in last)
        raise ImageError(f"RUN {' '.join(command.arguments)[:300]} ended with status {status}. Its last lines:{lines}")


def _refused(why: str) -> ImageError:
    return ImageError(f"RUN: {why}. {_WAY_OUT}")


def _rest(answers: object) -> str:
    return answers.read().decode(errors="replace").strip()  # type: ignore[attr-defined, no-any-return]


def _map_ids(pid: int, command: Command) -> None:
    """Map ids of the user namespace that a process has entered. user_namespaces(7)"""
    folder = Path(f"/proc/{pid}")
    if os.geteuid() == 0:
        for kind in ("uid_map", "gid_map"):
            (folder / kind).write_text(f"0 0 {_IDS}\n")
        return
    if command.uid or command.gid:
        raise ImageError(
            f"RUN as the user {command.uid}:{command.gid} needs more than the one id that an unprivileged user has: "
            "move USER after RUN, or build as root"
        )
    (folder / "setgroups").write_text("deny")
    (folder / "uid_map").write_text(f"0 {os.geteuid()} 1\n")
    (folder / "gid_map").write_text(f"0 {os.getegid()} 1\n")


def _changes(work: Path, before: _Before) -> dict[str, NewEntry]:
    entries: dict[str, NewEntry] = {}
    seen: set[str] = set()
    folders: dict[str, NewEntry] = {}
    first_of: dict[int, str] = {}
    for path, found in _walk(work, open_folders=True):
        seen.add(path)
        if stat.S_ISDIR(found.st_mode):
            folders[path] = _folder_entry(path, found, before)
        if path in before.made or before.files.get(path) == _state(found):
            continue
        if stat.S_ISREG(found.st_mode) and found.st_nlink > 1 and found.st_ino in first_of:
            entries[path] = NewEntry(hard_link=first_of[found.st_ino])
        elif (entry := folders.get(path) or _entry(work / path, found)) is not None:
            entries[path] = entry
            first_of.setdefault(found.st_ino, path)
    for path in sorted(before.files):
        parent, _, name = path.rpartition("/")
        if path not in seen and (not parent or parent in seen):
            entries[f"{parent}/{_WHITEOUT}{name}".lstrip("/")] = NewEntry(0o644, b"")
    add_parents(entries, list(entries), folders)
    return entries


def _folder_entry(path: str, found: os.stat_result, before: _Before) -> NewEntry:
    """Return the entry of a folder, with its mode in the image unless the command changed the mode."""
    mode = stat.S_IMODE(found.st_mode)
    own = before.modes.get(path, mode)
    uid, gid = _owner(found)
    return NewEntry(own if own | 0o700 == mode else mode, uid=uid, gid=gid)


def _entry(path: Path, found: os.stat_result) -> NewEntry | None:
    mode = stat.S_IMODE(found.st_mode)
    uid, gid = _owner(found)
    if stat.S_ISLNK(found.st_mode):
        return NewEntry(0o777, symlink=os.readlink(path), uid=uid, gid=gid)
    if stat.S_ISREG(found.st_mode):
        if not os.access(path, os.R_OK):
            path.chmod(mode | 0o400)  # the layer gets the mode that the command chose
        return NewEntry(mode, path, uid=uid, gid=gid)
    return None  # sockets and FIFOs do not outlive the command


def _owner(found: os.stat_result) -> tuple[int, int]:
    # Without root, the ids are those of the user's own namespace: the files belong to root in the image.
    return (found.st_uid, found.st_gid) if os.geteuid() == 0 else (0, 0)


def _state(found: os.stat_result) -> tuple[int, ...]:
    """Return values that change when a file is written, replaced or changed. For a folder, its own attributes."""
    if stat.S_ISDIR(found.st_mode):
        return found.st_mode, found.st_uid, found.st_gid
    return found.st_ino, found.st_ctime_ns, found.st_size, found.st_mode


def _walk(root: Path, *, open_folders: bool = False) -> list[tuple[str, os.stat_result]]:
    """Return all paths below a folder with their status, each folder before its contents, in one order.

    Args:
        root: the folder.
        open_folders: whether folders that the user may not read get the right, when their status has been taken.
    """
    found: list[tuple[str, os.stat_result]] = []
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        if open_folders and not os.access(root / folder, os.R_OK | os.X_OK):
            (root / folder).chmod(0o700)
        with os.scandir(root / folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                path = f"{folder}/{entry.name}".lstrip("/")
                found.append((path, entry.stat(follow_symlinks=False)))
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(path)
    return found
