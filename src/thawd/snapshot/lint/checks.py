"""The checks of ``thawd snapshot lint`` on a single object: by its class, or by the value of a number or text.

`rule_texts` has the texts of the findings. `reach` finds the objects and offers safe ways to examine them. No check
runs code of the object that it examines; only C functions of known classes are called. Standard library only, Python
3.9 and later; a library is used only if the function has imported it. Used by `thawd.snapshot.lint.search` alone.
"""

from __future__ import annotations

import os
import re
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

from thawd.snapshot.connections import NEW, PAIR, Openings
from thawd.snapshot.lint.clock_values import Lifetime
from thawd.snapshot.lint.reach import Reached, attributes, class_attribute, class_names, is_atom
from thawd.snapshot.lint.rule_texts import NOTE, Finding, finding

RUNNING = "running"
_SHORTEST_SECRET = 8
_LONGEST_SECRET = 4096  # Lambda's limit for all environment variables together
_SECRET_NAME = re.compile(r"AWS_(?:ACCESS_KEY_ID|SECRET_ACCESS_KEY|SESSION_TOKEN)|.*_(?:TOKEN|SECRET|PASSWORD|KEY)")
_SURE_KEY_NAME = re.compile(r".*(?:API|ACCESS|SECRET|PRIVATE)_KEY")
# A variable such as `MODEL_KEY` may hold an object's key instead of a secret. A value with a suffix or with spaces
# counts as an object's key.
_NAME_OF_A_FILE = re.compile(r".*\.\w{1,8}|.*\s.*", re.DOTALL)
_CHANGING_VARIABLES = ("AWS_LAMBDA_LOG_STREAM_NAME", "_X_AMZN_TRACE_ID")
_UUID_TEXT = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-([14])[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_GENERATED_UUIDS = {1: "from clock and network card", 4: "random", 6: "from the clock", 7: "from the clock"}
_HARMLESS_FILES = ("/dev/null", "/dev/random", "/dev/urandom", "/dev/zero")
_SQLITE_MAGIC = b"SQLite format 3\0"


class Checks:
    """Checks one object after the other and collects the findings.

    Args:
        sources: source text of the function's modules, in lower case. A UUID that it contains is a constant and was not
            generated while init ran.
        own_fds: descriptors of the runtime.
        openings: records of which code opened sockets.

    Attributes:
        found: the findings so far.
        known_fds: standard streams, descriptors of the runtime, and descriptors of objects that have been checked.
    """

    def __init__(self, *, sources: str, own_fds: Iterable[int] = (), openings: Openings | None = None) -> None:
        self.found: list[Finding] = []
        self.known_fds = {0, 1, 2, *own_fds}
        self.openings = openings or Openings()
        self._sources = sources
        self._lifetime = Lifetime()
        self._secrets = _values(secret_names())
        self._changing = _values(_CHANGING_VARIABLES)
        self._variables = {os.environ[name] for name in os.environ}
        self._global_generators = _global_generators()
        self._by_class: dict[int, tuple[type, Callable[[Reached], bool] | None]] = {}
        self._checks = self._checks_by_name()

    def visit(self, reached: Reached) -> bool:
        """Check one object; returns True if the objects to which it refers must not be checked."""
        cls = type(reached.value)
        if is_atom(reached.value):
            self._plain(reached)
            return True
        known = self._by_class.get(id(cls))
        if known is None:
            known = self._by_class[id(cls)] = (cls, self._check_for(cls))
        return known[1] is not None and known[1](reached)

    def _report(self, rule: str, reached: Reached, what: str, *, level: str = "") -> bool:
        self.found.append(finding(rule, reached.path, what, level=level))
        return True

    def _checks_by_name(self) -> dict[str, Callable[[Reached], bool]]:
        return {
            "random.SystemRandom": _stop_here,
            "_random.Random": self._generator,
            "numpy.random._generator.Generator": self._generator,
            "numpy.random.mtrand.RandomState": self._generator,
            "numpy.random.bit_generator.BitGenerator": self._generator,
            "numpy.random.bit_generator.SeedSequence": self._generator,
            "torch._C.Generator": self._generator,
            "tensorflow.python.ops.stateful_random_ops.Generator": self._generator,
            "keras.src.random.seed_generator.SeedGenerator": self._generator,
            "botocore.credentials.RefreshableCredentials": _stop_here,  # they renew themselves
            "botocore.credentials.Credentials": self._credentials,
            "botocore.credentials.ReadOnlyCredentials": self._credentials,
            "datetime.date": self._time,
            "time.struct_time": self._time,
            "uuid.UUID": self._uuid,
            "asyncio.events.AbstractEventLoop": self._event_loop,
            "_io.FileIO": self._file,
            "sqlite3.Connection": self._database,
            "subprocess.Popen": self._child,
            "multiprocessing.process.BaseProcess": self._multiprocessing_child,
            "multiprocessing.pool.ThreadPool": _continue,
            "multiprocessing.pool.Pool": self._pool,
            "concurrent.futures.process.ProcessPoolExecutor": self._pool,
            "tempfile._TemporaryFileWrapper": self._temporary,
            "tempfile.TemporaryDirectory": self._temporary,
        }

    def _check_for(self, cls: type) -> Callable[[Reached], bool] | None:
        names = class_names(cls)
        for name in names:
            if name in self._checks:
                return self._checks[name]
        # Sockets and the connections of database drivers written in C have a `fileno` that is implemented in C, so it
        # may be called: it runs no code of the user.
        if type(class_attribute(cls, "fileno")) is types.MethodDescriptorType and not names[0].startswith("_io."):
            return self._descriptor
        return None

    def _plain(self, reached: Reached) -> None:
        value = reached.value
        cls = type(value)
        if cls is str or cls is bytes:
            if len(value) > _LONGEST_SECRET:
                return
            text = value if cls is str else value.decode("utf-8", "replace")
            if text in self._secrets:
                self._report("TS004", reached, f"the value of the variable {self._secrets[text]} (not shown)")
            elif text in self._changing:
                self._report("TS012", reached, f"the value of the variable {self._changing[text]}")
            elif reached.near and len(text) == 36 and text not in self._variables:
                matched = _UUID_TEXT.fullmatch(text)
                if matched and text not in self._sources:
                    self._report("TS007", reached, f"text of a UUID, version {matched[1]}")
        elif reached.near:
            self._time(reached)

    def _time(self, reached: Reached) -> bool:
        clock = self._lifetime.clock(reached.value) if reached.near else ""
        if clock:
            self._report("TS005", reached, f"{clock}, taken after the process started")
        return True

    def _generator(self, reached: Reached) -> bool:
        if id(reached.value) not in self._global_generators:
            name = class_names(type(reached.value))[0]
            # Keras gets only a note: each layer has a generator, but uses it only in training.
            self._report("TS001", reached, f"a {name}", level=NOTE if name.startswith("keras.") else "")
        return True

    def _credentials(self, reached: Reached) -> bool:
        return self._report("TS004", reached, f"a {class_names(type(reached.value))[0]} that does not renew itself")

    def _uuid(self, reached: Reached) -> bool:
        number = attributes(reached.value).get("int")
        if not reached.near or type(number) is not int or number >> 62 & 3 != 2:
            return True
        version = number >> 76 & 15
        text = f"{number:032x}"
        dashed = "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
        if version in _GENERATED_UUIDS and not self._is_constant(text, dashed):
            self._report("TS007", reached, f"a UUID, version {version}, {_GENERATED_UUIDS[version]}")
        return True

    def _is_constant(self, *texts: str) -> bool:
        constants = {str(value) for name, value in vars(sys.modules["uuid"]).items() if name.startswith("NAMESPACE_")}
        return any(text in self._sources or text in self._variables or text in constants for text in texts)

    def _event_loop(self, reached: Reached) -> bool:
        state = loop_state(reached.value)
        if state:
            what = f"{state}: {class_names(type(reached.value))[0]}"
            self._report("TS006", reached, what, level="" if state == RUNNING else NOTE)
        return True

    def _descriptor(self, reached: Reached) -> bool:
        try:
            fd = class_attribute(type(reached.value), "fileno").__get__(reached.value)()
        except Exception:  # the connection is closed; drivers raise different exceptions then
            return False
        if fd in self.known_fds or not link_of(fd).startswith("socket:"):
            return False
        self.known_fds.add(fd)
        held = self.openings.socket(fd)
        if held.kind == PAIR:
            return False
        what = f"a {class_names(type(reached.value))[0]}, {held.state()}"
        return self._report("TS002", reached, what, level=NOTE if held.kind == NEW else "")

    def _file(self, reached: Reached) -> bool:
        file_io: Any = sys.modules["_io"].FileIO
        try:
            fd, writable = file_io.fileno(reached.value), file_io.writable(reached.value)
        except ValueError:
            return True  # the file is closed
        path = link_of(fd)
        if fd not in self.known_fds and path.startswith("/") and path not in _HARMLESS_FILES:
            self.known_fds.add(fd)
            level = "" if writable else NOTE
            self._report("TS008", reached, f"{path}, open for {'writing' if writable else 'reading'}", level=level)
        return True

    def _database(self, reached: Reached) -> bool:
        sqlite: Any = sys.modules["sqlite3"]
        try:
            sqlite.Connection.total_changes.__get__(reached.value)
        except sqlite.Error:
            return True  # the connection is closed
        files = sorted({path for fd, path in open_files() if _is_database(fd, path)})
        # Without files the database is in memory, and is frozen like all other memory.
        return self._report("TS008", reached, f"an open SQLite database ({', '.join(files)})") if files else True

    def _child(self, reached: Reached) -> bool:
        held = attributes(reached.value)
        if held.get("returncode", 0) is None and is_running(held.get("pid")):
            self._report("TS009", reached, f"a running process, pid {held['pid']}")
        return False

    def _multiprocessing_child(self, reached: Reached) -> bool:
        popen = attributes(reached.value).get("_popen")
        if popen is None:
            return False  # the child was not started or is closed, or the object is this process itself
        held = attributes(popen)
        if held.get("returncode", 0) is None and is_running(held.get("pid")):
            self._report("TS009", reached, f"a running process of multiprocessing, pid {held['pid']}")
        return True

    def _pool(self, reached: Reached) -> bool:
        held = attributes(reached.value)
        # A Pool has `_state`. An executor has a dict of its processes by pid, or None once it is shut down.
        processes = held.get("_processes")
        if held.get("_state") == "RUN" if "_state" in held else type(processes) is dict and processes:
            self._report("TS009", reached, f"the processes of a {class_names(type(reached.value))[0]}")
        return True

    def _temporary(self, reached: Reached) -> bool:
        name = attributes(reached.value).get("name")
        if type(name) is str and os.path.lexists(name):
            self._report("TS010", reached, name)
        return True


def _stop_here(reached: Reached) -> bool:
    return True


def _continue(reached: Reached) -> bool:
    return False


def secret_names() -> list[str]:
    """Names of the environment variables that seem to hold credentials, judging by their names and values."""
    names = []
    for name, value in os.environ.items():
        is_key = name.endswith("_KEY") and not _SURE_KEY_NAME.fullmatch(name)
        if _SECRET_NAME.fullmatch(name) and not (is_key and _NAME_OF_A_FILE.fullmatch(value)):
            names.append(name)
    public = {value for name, value in os.environ.items() if name not in names}
    return [name for name in names if len(os.environ[name]) >= _SHORTEST_SECRET and os.environ[name] not in public]


def _values(names: Iterable[str]) -> dict[str, str]:
    return {os.environ[name]: name for name in names if os.environ.get(name)}


def _global_generators() -> set[int]:
    """Identities of the generators that `thawd.snapshot.uniqueness` renews."""
    places = (("random", "_inst"), ("numpy.random.mtrand", "_rand"), ("torch", "default_generator"))
    return {id(getattr(sys.modules.get(module), name, None)) for module, name in places}


def link_of(fd: int) -> str:
    """The kernel's name for a descriptor's file, for example ``socket:[4711]``; empty for a closed descriptor."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def open_files() -> list[tuple[int, str]]:
    """The descriptors of this process and their files, as `link_of` returns them; [] if /proc cannot be read."""
    try:
        return [(int(name), link_of(int(name))) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return []


def _is_database(fd: int, path: str) -> bool:
    if not path.startswith("/") or not os.path.isfile(path):
        return False
    try:
        return os.pread(fd, len(_SQLITE_MAGIC), 0) in (_SQLITE_MAGIC, b"")
    except OSError:
        return False


def loop_state(loop: Any) -> str:
    """`RUNNING` or "open"; empty for an event loop that has been closed.

    The result is certain for the loops of asyncio and uvloop. Code of other loop classes is not run, so such a loop may
    count as "open" although it runs or is closed.
    """
    if "uvloop.loop.Loop" in class_names(type(loop)):
        compiled: Any = sys.modules["uvloop.loop"].Loop
        if compiled.is_running(loop):
            return RUNNING
        return "" if compiled.is_closed(loop) else "open"
    held = attributes(loop)
    if held.get("_thread_id") is not None:
        return RUNNING
    return "" if held.get("_closed") is True else "open"


def is_running(pid: Any) -> bool:
    """Whether `pid` is a child of this process that has not ended. Does not reap a child that has ended."""
    if type(pid) is not int:
        return False
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except OSError:
        return False
