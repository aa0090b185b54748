"""Finds resources that forks of this process would share. If there are any, the process must not be forked.

A fork copies memory, but its descriptors refer to the template's open files. Two forks that read from the same
connection get each other's answers, two that wait on the same epoll set take each other's wake-ups, and all forks move
the same file position. Only files that each fork can reopen (regular files, folders, harmless devices) may stay open.

Source: fork(2), open(2) "Open file descriptions"; SQLite, "How To Corrupt An SQLite Database File", 2.6.
"""

import fcntl
import os
import re
import stat
from typing import Iterable, List, Optional

from thawd.runtime import process

_STANDARD_STREAMS = (0, 1, 2)
_MOST_NAMED = 3  # a refusal names at most this many resources, and counts the others
# Linux, include/uapi/linux/major.h: major number 1 means memory devices. Minors: null, zero, full, random, urandom.
_MEMORY_DEVICES = frozenset(os.makedev(1, minor) for minor in (3, 5, 7, 8, 9))
_SQLITE = b"SQLite format 3\0"  # Source: sqlite.org, "Database File Format", 1.3
# A line of /proc/PID/maps: a mapping that is writable (w) and shared (s), and its path.
_SHARED_WRITABLE = re.compile(r"^\S+ .w.s \S+ \S+ \S+ *(.*)$")

_WAY_OUT = (
    "forks would share every such resource and get each other's data; open it on the first invocation, or close it in "
    "a before-snapshot hook"
)


def refusal() -> Optional[str]:
    """Which resources forks would share, and what to do; None when there are none."""
    shared = [text for fd in _descriptors() for text in [_shared(fd)] if text] + _memory() + _children()
    if not shared:
        return None
    more = "" if len(shared) <= _MOST_NAMED else " and %d more" % (len(shared) - _MOST_NAMED)
    return "init left open %s%s: %s" % ("; ".join(shared[:_MOST_NAMED]), more, _WAY_OUT)


def reopen() -> None:
    """In a fork, open regular files and folders again, so that the fork does not share them with the template.

    Each file keeps its position.

    Raises:
        OSError: a file can no longer be opened; this process must then end.
    """
    for fd in _descriptors():
        mode = os.fstat(fd).st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            inheritable = os.get_inheritable(fd)
            reopened = os.open(_path_of(fd), _flags(fd))
            if stat.S_ISREG(mode) and not _flags(fd) & os.O_PATH:
                os.lseek(reopened, os.lseek(fd, 0, os.SEEK_CUR), os.SEEK_SET)
            os.dup2(reopened, fd, inheritable)
            os.close(reopened)


def _descriptors() -> List[int]:
    """The descriptors that the function opened, by number: all but the standard streams and the runtime's own.

    The list is empty without /proc, for example on another system than Linux.
    """
    not_the_functions = {*_STANDARD_STREAMS, *process.private_fds}
    found = []
    try:
        listed = os.listdir("/proc/self/fd")
    except OSError:
        return []
    for name in listed:
        try:
            os.fstat(int(name))
        except OSError:
            continue  # the descriptor through which the folder was listed is closed by now
        if int(name) not in not_the_functions:
            found.append(int(name))
    return sorted(found)


def _shared(fd: int) -> str:
    """Describes the resource that forks would share through this descriptor; empty if each fork can reopen it."""
    status = os.fstat(fd)
    link = os.readlink("/proc/self/fd/%d" % fd)
    if stat.S_ISDIR(status.st_mode):
        return ""
    if stat.S_ISCHR(status.st_mode) and status.st_rdev in _MEMORY_DEVICES:
        return ""
    if stat.S_ISREG(status.st_mode):
        return _shared_file(fd, link, status)
    return "%s (%s)" % (link.split(":")[0] if link.startswith("socket:") else link, _what(fd, link))


def _what(fd: int, link: str) -> str:
    if not link.startswith("socket:"):
        return "descriptor %d" % fd
    from thawd.snapshot.connections import Openings

    return Openings().socket(fd).describe()


def _shared_file(fd: int, link: str, status: os.stat_result) -> str:
    writable = _flags(fd) & os.O_ACCMODE != os.O_RDONLY
    if status.st_nlink == 0:
        return "%s (descriptor %d)" % (link, fd) if writable else ""
    try:
        is_database = os.pread(fd, len(_SQLITE), 0) == _SQLITE
    except OSError:
        is_database = False  # the file is open for writing only
    if _is_locked(fd):
        return "%s (locked, descriptor %d)" % (link, fd)
    return "%s (an SQLite database, descriptor %d)" % (link, fd) if is_database else ""


def _is_locked(fd: int) -> bool:
    """Whether this descriptor holds a lock on its file. A fork, which reopens the file, would not hold the lock.

    Source: proc_pid_fdinfo(5).
    """
    try:
        with open("/proc/self/fdinfo/%d" % fd) as info:
            return any(line.startswith("lock:") for line in info)
    except OSError:
        return False


def _flags(fd: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_GETFL) & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC)


def _path_of(fd: int) -> str:
    """The path at which to reopen a file.

    Usually this is the path at which init opened the file. If another file is there now, the path is the descriptor's
    link in /proc, which leads to the file that is open.
    """
    link, opened = os.readlink("/proc/self/fd/%d" % fd), os.fstat(fd)
    try:
        at_path = os.stat(link)
    except OSError:
        return "/proc/self/fd/%d" % fd
    same = os.path.samestat(opened, at_path)
    # In the fork's own temporary folder, the path leads to the fork's copy of the file: another inode with the same
    # size and time. thaw makes the same check for thawed copies: native/thaw_image.c, file_must_match.
    copied = (opened.st_size, opened.st_mtime_ns) == (at_path.st_size, at_path.st_mtime_ns)
    return link if same or copied or stat.S_ISDIR(opened.st_mode) else "/proc/self/fd/%d" % fd


def _memory() -> List[str]:
    """Shared memory that all forks would write to: locks and values of multiprocessing, the WAL index of SQLite."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            matches: Iterable[Optional["re.Match[str]"]] = [_SHARED_WRITABLE.match(line) for line in maps]
    except OSError:
        return []
    paths = {match[1].strip() for match in matches if match is not None}
    return ["shared memory (%s)" % (path or "without a name") for path in sorted(paths)]


def _children() -> List[str]:
    """Live child processes that init started; all forks would use the same ones. Source: proc_tid_children(5)."""
    living = []
    try:
        for task in os.listdir("/proc/self/task"):
            with open("/proc/self/task/%s/children" % task) as children:
                pids = children.read().split()
            for pid in pids:
                with open("/proc/%s/stat" % pid, errors="replace") as stat_file:  # a process gives itself any name
                    name, _, rest = stat_file.read().rpartition(")")
                if rest.split()[0] not in "ZX":
                    living.append("a child process (%s, pid %s)" % (name.partition("(")[2], pid))
    except OSError:
        return []  # a child has just ended, or the kernel does not list children
    return living
