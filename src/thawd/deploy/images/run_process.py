"""The process that a RUN instruction's command is started by: it enters namespaces in which the image is the root.

It is started by the path of this file, and imports nothing from thawd. Steps, in this order, because each needs the one
before: a user namespace, whose ids the parent maps; mounts below the new root; pivot_root(2); a process id namespace,
whose first process reaps all others; the command. When the parent dies, the kernel ends all of them, and the mounts are
gone with the last process.

It gets two descriptors. From the first it reads a line of JSON, and another line when its ids are mapped. To the second
it writes ``U`` once it is in its user namespace, or a text if it fails before the command starts.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
import sys
from typing import Any, NoReturn

_CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWUTS = 0x20000, 0x08000000, 0x04000000
_CLONE_NEWUSER, _CLONE_NEWPID = 0x10000000, 0x20000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
_MS_REMOUNT = 32
# Flags of a mount that statvfs(3) and mount(2) number alike; a mount of the machine keeps those that it has.
_KEPT_FLAGS = 2 | 4 | 8 | 1024 | 2048
_ST_RELATIME, _MS_RELATIME = 4096, 1 << 21
_MNT_DETACH = 2
_PR_SET_PDEATHSIG = 1
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_DEVICES = ("null", "zero", "full", "random", "urandom")
# Parts of /proc that belong to the machine, and that its root may write to, also from another namespace.
_OF_THE_KERNEL = ("sys", "sysrq-trigger", "irq", "bus", "fs")
_FAILED = 125  # as `docker run` exits when the command could not be started

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Run the command of one request, and exit with its status."""
    request_fd, answers_fd = int(sys.argv[1]), int(sys.argv[2])
    try:
        with open(request_fd, encoding="utf-8") as file:
            request = json.loads(file.readline())
            _die_with_parent()
            flags = _CLONE_NEWUSER | _CLONE_NEWNS | _CLONE_NEWIPC | _CLONE_NEWUTS | _CLONE_NEWPID
            _check(_libc.unshare(flags), "unshare: the kernel refuses user namespaces")
            _die_with_parent()
            os.write(answers_fd, b"U")
            file.readline()  # the parent has mapped the ids
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        status = _in_new_process_namespace(request, answers_fd)
    except OSError as error:
        os.write(answers_fd, f"{error.strerror or error}".encode())
        status = _FAILED
    os._exit(status)


def _in_new_process_namespace(request: dict[str, Any], answers_fd: int) -> int:
    """Fork the first process of the new namespace, and return the command's exit status."""
    first = os.fork()
    if first == 0:
        try:
            _die_with_parent()
            notes = _enter_root(request)
            for note in notes:
                print(note, flush=True)
            command = os.fork()
            if command == 0:
                os.close(answers_fd)
                _exec(request)
            os.close(answers_fd)
            os._exit(_reap_until(command))
        except OSError as error:
            os.write(answers_fd, f"{error.strerror or error}".encode())
            os._exit(_FAILED)
    return _status(os.waitpid(first, 0)[1])


def _reap_until(command: int) -> int:
    while True:
        ended, status = os.wait()
        if ended == command:
            return _status(status)


def _status(status: int) -> int:
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def _exec(request: dict[str, Any]) -> NoReturn:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.umask(0o022)
    try:
        os.chdir(request["working_dir"])
        if request["uid"] or request["gid"]:
            os.setgroups([])
            os.setresgid(request["gid"], request["gid"], request["gid"])
            os.setresuid(request["uid"], request["uid"], request["uid"])
        os.execvpe(request["command"][0], request["command"], request["env"])
    except OSError as error:
        print(f"{request['command'][0]}: {error.strerror}", flush=True)
    os._exit(127)


def _enter_root(request: dict[str, Any]) -> list[str]:
    """Mount what a command needs below the new root, and make it the root. Returns notes about what is missing."""
    root, dev = request["root"], request["dev"]
    notes = []
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    _mount(root, root, None, _MS_BIND | _MS_REC)
    _mount("tmpfs", dev, "tmpfs", _MS_NOSUID, "mode=755,size=65536k")
    for name in _DEVICES:
        with open(f"{dev}/{name}", "w"):
            pass
        _mount(f"/dev/{name}", f"{dev}/{name}", None, _MS_BIND)
        _make_read_only(f"{dev}/{name}")  # devices can be written to nevertheless, but keep their modes
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(target, f"{dev}/{name}")
    os.mkdir(f"{dev}/shm")
    _mount("tmpfs", f"{dev}/shm", "tmpfs", _MS_NOSUID | _MS_NODEV)
    os.chmod(f"{dev}/shm", 0o1777)
    try:
        _mount("proc", request["proc"], "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    except OSError:
        # The kernel refuses this where parts of the old /proc are hidden, as in containers. mount_namespaces(7)
        notes.append("/proc is empty in this build: the machine hides parts of its own")
    else:
        for path in (f"{request['proc']}/{name}" for name in _OF_THE_KERNEL):
            if os.path.exists(path):
                _mount(path, path, None, _MS_BIND | _MS_REC)
                _make_read_only(path)
    for source, target in request["binds"]:
        _mount(source, target, None, _MS_BIND)
    for target in request["scratch"]:
        _mount("tmpfs", target, "tmpfs", _MS_NOSUID | _MS_NODEV)
    os.chdir(root)
    number = _PIVOT_ROOT[platform.machine()]
    _check(_libc.syscall(number, b".", b"."), "pivot_root")  # the old root is mounted over the new one: pivot_root(2)
    _check(_libc.umount2(b".", _MNT_DETACH), "umount2")
    os.chdir("/")
    return notes


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    text = None if data is None else data.encode()
    _check(_libc.mount(*encoded, ctypes.c_ulong(flags), text), f"mount {target}")


def _make_read_only(target: str) -> None:
    had = os.statvfs(target).f_flag
    kept = (had & _KEPT_FLAGS) | (_MS_RELATIME if had & _ST_RELATIME else 0)
    _mount(None, target, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | kept)


def _die_with_parent() -> None:
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
    main()
