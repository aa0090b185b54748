"""What a thawed copy must renew to be a process of its own: randomness, what was derived from the pid, its variables.

Owns the list of repairs on Python's level. All copies of a snapshot wake with the same memory: generators would give
them the same numbers, and caches would tell them the pid, the threads and the variables of the process that was frozen.
May not load a library: one that is not in ``sys.modules`` cannot have been frozen. Standard library only, Python 3.9
and later. Its place is right after the thaw, before the after-restore hooks and thus before any code of the function:
`environment` first, then `renew`.

What a library keeps in native code beyond what is named here, and what the function's own objects hold, cannot be
renewed from here: see docs/explanation/uniqueness.md.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

_OPENSSL_SEED_BYTES = 48
_AUTHKEY_BYTES = 32
_SIGKILL = 9
_MULTICAST = 1 << 40  # of a node in a UUID: it is random, not the address of a network card (RFC 9562, 6.10)
_TEMPORARY_FOLDER_VARIABLES = (b"TMPDIR", b"TEMP", b"TMP")
_TEMPORARY_FOLDERS = ("/tmp", "/var/tmp", "/usr/tmp")


class RenewalError(Exception):
    """Something could not be renewed: this copy may repeat what another says and must not answer invocations."""


def renew(old_pid: int, *, thread_ids: Callable[[int], int]) -> list[str]:
    """Make this copy differ from its siblings.

    Takes 0.3 to 3 ms in a fresh copy, by the libraries loaded: nearly all of it are page faults.

    Args:
        old_pid: process id at the freeze.
        thread_ids: the id in this copy of the thread that had the given id at the freeze; 0 when unknown.

    Returns:
        Names of what was renewed, those of `RENEWALS`.

    Raises:
        RenewalError: a library refused; all others were renewed nevertheless.
    """
    done, refused = [], []
    for name, repair in RENEWALS.items():
        module = sys.modules.get(name)
        if module is None:
            continue
        try:
            repair(module)
        except Exception as error:  # the border to libraries: one that fails must not keep the others from it
            refused.append(f"{name} ({type(error).__name__}: {error})")
        else:
            done.append(name)
    threading = sys.modules.get("threading")
    if threading is not None:
        _threads(threading, old_pid, thread_ids)
        done.append("threading")
    children = sys.modules.get("multiprocessing.process")
    if children is not None:
        _children(children, old_pid)
    if refused:
        raise RenewalError(
            f"after the thaw this could not be renewed: {'; '.join(refused)}. Two copies might give the same random "
            "numbers, so this one is not used; leave the library unloaded until the first invocation, or set "
            "snapshot = false"
        )
    return done


def started_with() -> dict[bytes, bytes]:
    """The variables this process was given when it began, before anything changed them; {} where /proc does not tell.

    Right until the process is thawed; from then on they are those last given to `environment`.
    Source: proc_pid_environ(5).
    """
    try:
        with open("/proc/self/environ", "rb") as file:
            block = file.read()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in block.split(b"\0"))
    return {name: value for name, equals, value in pairs if equals}


def environment(
    new: Mapping[bytes, bytes] | Mapping[str, str], *, given: Mapping[bytes, bytes] | Mapping[str, str]
) -> list[str]:
    """Give this copy its own variables and keep those that init itself set, as if it had been started with them.

    A variable given to the copy that init was not given, or with another value: the new value, whatever init made of
    it. Given with the same value as then: as init left it. No longer given: removed, unless init changed it. Never
    given: as init left it.

    Where ``TZ`` changes, local time follows; where ``TMPDIR`` does, the default folder of ``tempfile`` does too. Only
    what differs is written: other threads are awake already, and C code may be reading variables meanwhile.

    Args:
        new: the variables this copy was started with.
        given: those that the frozen process had been started with.

    Returns:
        Names of the variables set or removed, sorted; never a value.
    """
    new_bytes, given_bytes = _as_bytes(new), _as_bytes(given)
    current = os.environb
    default_folders = _default_folders(current)
    changed = []
    for name, value in new_bytes.items():
        if given_bytes.get(name) != value and current.get(name) != value and _can_be_set(name, value):
            current[name] = value
            changed.append(name)
    for name, value in given_bytes.items():
        if name not in new_bytes and current.get(name) == value:
            del current[name]
            changed.append(name)
    if b"TZ" in changed:
        time.tzset()
    if any(name in changed for name in _TEMPORARY_FOLDER_VARIABLES):
        _forget_temporary_folder(default_folders)
    return sorted(os.fsdecode(name) for name in changed)


def _as_bytes(variables: Mapping[Any, Any]) -> dict[bytes, bytes]:
    return {os.fsencode(name): os.fsencode(value) for name, value in variables.items()}


def _can_be_set(name: bytes, value: bytes) -> bool:
    # exec(3) hands over what setenv(3) does not take.
    return bool(name) and b"=" not in name and b"\0" not in name + value


def _default_folders(variables: Mapping[bytes, bytes]) -> set[str]:
    """Where ``tempfile`` puts files by itself: what is found here was not chosen by the function."""
    chosen = {os.fsdecode(variables[name]) for name in _TEMPORARY_FOLDER_VARIABLES if name in variables}
    return {os.path.abspath(folder) for folder in chosen if folder} | set(_TEMPORARY_FOLDERS)


def _forget_temporary_folder(default_folders: set[str]) -> None:
    tempfile: Any = sys.modules.get("tempfile")
    if tempfile is not None and tempfile.tempdir in default_folders:
        tempfile.tempdir = None


def _random(random: Any) -> None:
    random.seed()


def _numpy(mtrand: Any) -> None:
    mtrand.seed()
    if hasattr(mtrand, "get_bit_generator"):
        # Where the function has put in a generator of another kind, `seed` leaves the spare normal deviate behind.
        mtrand.set_bit_generator(mtrand.get_bit_generator())


def _torch(torch: Any) -> None:
    # Not torch.seed(): it also queues seeds for GPUs, each with a formatted stack; a process with a GPU is not frozen.
    torch.default_generator.seed()


def _tensorflow(tensorflow: Any) -> None:
    tensorflow.random.set_seed(int.from_bytes(os.urandom(7), "little"))


def _polars(polars: Any) -> None:
    polars.set_random_seed(int.from_bytes(os.urandom(8), "little"))


def _openssl(ssl: Any) -> None:
    # OpenSSL renews itself where the pid differs; in two containers it need not.
    ssl.RAND_add(os.urandom(_OPENSSL_SEED_BYTES), float(_OPENSSL_SEED_BYTES))


def _cryptography(binding: Any) -> None:
    """The wheels of ``cryptography`` carry an OpenSSL of their own."""
    library: Any = getattr(getattr(binding, "_openssl", None), "lib", None)
    if hasattr(library, "RAND_add"):
        library.RAND_add(os.urandom(_OPENSSL_SEED_BYTES), _OPENSSL_SEED_BYTES, float(_OPENSSL_SEED_BYTES))


def _uuid(uuid: Any) -> None:
    """Take ``uuid1`` out of libuuid's hands: node and clock sequence lie in its memory, out of reach, in every copy.

    ``uuid1`` in Python draws a clock sequence for each UUID. Source: CPython, Lib/uuid.py.
    """
    generate = uuid._generate_time_safe
    if generate is not None:
        if uuid._node is None:
            # Asked now: without libuuid, `getnode` would run ifconfig and the like to find it out.
            uuid._node = int.from_bytes(generate()[0][10:], "big")
        uuid._generate_time_safe = None
    if uuid._node is not None and uuid._node & _MULTICAST:
        uuid._node = int.from_bytes(os.urandom(6), "big") | _MULTICAST
    for name in ("_last_timestamp", "_last_timestamp_v6", "_last_timestamp_v7"):
        if hasattr(uuid, name):
            setattr(uuid, name, None)


def _tempfile(tempfile: Any) -> None:
    _renew_names(tempfile._name_sequence)


def _semaphores(synchronize: Any) -> None:
    _renew_names(synchronize.SemLock._rand)


def _renew_names(sequence: Any) -> None:
    """Have a ``tempfile._RandomNameSequence`` make a new generator, as it does by itself when it sees another pid."""
    if sequence is not None:
        sequence._rng_pid = None


def _multiprocessing(process: Any) -> None:
    current = process._current_process
    key = current._config.get("authkey")
    # One of another length was set by the function, to be shared with somebody.
    if key is not None and len(key) == _AUTHKEY_BYTES:
        current.authkey = os.urandom(_AUTHKEY_BYTES)
    # The folder of sockets and shared files; each copy makes its own when it needs one.
    current._config.pop("tempdir", None)


def _children(process: Any, old_pid: int) -> None:
    """Note as dead the children of the frozen process: at exit, multiprocessing would signal whoever has their pids."""
    for child in list(process._children):
        if child._parent_pid == old_pid and child._popen.returncode is None:
            child._popen.returncode = -_SIGKILL


def _threads(threading: Any, old_pid: int, thread_ids: Callable[[int], int]) -> None:
    """Correct ``Thread.native_id``; None where the new id is unknown."""
    own = threading.get_ident()
    for ident, thread in list(threading._active.items()):
        if ident == own:
            thread._native_id = threading.get_native_id()
        elif thread._native_id is not None:
            new = thread_ids(thread._native_id)
            if not new and thread._native_id == old_pid:
                new = os.getpid()
            thread._native_id = new or None


def _logging(logging: Any) -> None:
    # `relativeCreated` counts from here; nanoseconds from Python 3.13 on.
    if hasattr(logging, "_startTime"):  # a function may have a module of this name itself
        logging._startTime = time.time_ns() if isinstance(logging._startTime, int) else time.time()


def _platform(platform: Any) -> None:
    # `platform.node()`: the name of the machine, which another container has another one of.
    if hasattr(platform, "_uname_cache"):  # a function may have a module of this name itself
        platform._uname_cache = None
        platform._platform_cache.clear()


# Module that must be loaded -> its repair. The pages of documentation list the same names.
RENEWALS: dict[str, Callable[[Any], None]] = {
    "random": _random,
    "numpy.random.mtrand": _numpy,
    "torch": _torch,
    "tensorflow": _tensorflow,
    "polars": _polars,
    "_ssl": _openssl,
    "cryptography.hazmat.bindings._rust": _cryptography,
    "uuid": _uuid,
    "tempfile": _tempfile,
    "multiprocessing.synchronize": _semaphores,
    "multiprocessing.process": _multiprocessing,
    "logging": _logging,
    "platform": _platform,
}
