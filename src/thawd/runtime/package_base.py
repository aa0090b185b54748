"""The process of a package base: a copy of a base that has also imported the packages a handler's module begins with.

Importing a package may have an effect that depends on the function: on its folder, its name, its variables. Such a
package must not be in a base that several functions share. So the platform first lets a separate process import the
packages and record what they look at (`_observe`). That process is never frozen. A second process imports the packages
in the same way, without recorders, and is frozen (`_become`). Each copy checks that the function's own folder has no
file that could change what an import finds (`own_file_in_the_way`).

In both processes, variables whose values differ between the functions on the base have a placeholder as value.
"""

import gc
import json
import os
import sys
import time
from types import FrameType
from typing import Any, Callable, Dict, List, NamedTuple, NoReturn, Optional, Sequence, Set, Tuple

from thawd.runtime import base_process, process
from thawd.runtime.base_process import BaseCopy
from thawd.runtime.changed_files import SourceFiles
from thawd.runtime.channel import Channel
from thawd.snapshot.connections import Openings
from thawd.wire import frames

# These packages read `sys.path`, which contains the function's folder, when they are imported.
_SEARCHES_PATH = ("pip", "pkg_resources", "setuptools")
_INSTALLED = (".dist-info", ".egg-info", ".egg", ".egg-link")
_MOST_OUTPUT_BYTES = 200
# The interpreter itself sets the first. The second has the same value in each process that will be frozen.
_ALWAYS_EQUAL = ("LC_CTYPE", "AWS_LAMBDA_INITIALIZATION_TYPE")
# Shorter values could be found by chance. The placeholders that the platform gives are longer.
_RECOGNIZABLE = 8
_FOLDER = "the current folder"
# Audit events of programs that are started: they have the variables and the current folder of this process.
_STARTS = ("os.exec", "os.fork", "os.posix_spawn", "os.system", "subprocess.Popen")
# Modules through which others look at something.
_BETWEEN = (
    "thawd.runtime.package_base",
    "os",
    "posixpath",
    "genericpath",
    "collections.abc",
    "pathlib",
    "subprocess",
)


class PackageBase(NamedTuple):
    """What a copy of a package base needs to know about the base.

    Attributes:
        before: the state of the process before it imported the packages; see `base_process.state`.
        changed: names of the environment variables that the packages set, changed or removed.
        tried: first parts of the names of all modules that were loaded, or that were looked for and not found.
    """

    before: Dict[str, Any]
    changed: Set[str]
    tried: Set[str]

    def state(self) -> Dict[str, Any]:
        """The state of this copy as if the packages had not been imported, to compare with a process without a base."""
        now = base_process.state()
        variables = {name: value for name, value in now["variables"].items() if name not in self.changed}
        kept = {name: value for name, value in self.before["variables"].items() if name in self.changed}
        return {**self.before, "sys.flags": now["sys.flags"], "variables": {**variables, **kept}}


def run(channel: Channel, base: BaseCopy) -> "Tuple[BaseCopy, Optional[PackageBase]]":
    """Do in a copy of a base what the platform asks for with the copy's arguments. Returns only if it is to run init.

    Args:
        channel: channel to the platform.
        base: this process.
    """
    if base.arguments[0] == "base":
        return base, None
    request = json.loads(base.arguments[1])
    if base.arguments[0] == "observe":
        _observe(channel, base, request)
    return _become(channel, base, request)


def _observe(channel: Channel, base: BaseCopy, request: Dict[str, Any]) -> NoReturn:
    """Import the packages, report what that depends on, and end this process."""
    equal = {*request["shared"], *_ALWAYS_EQUAL}
    looks = _Looks({name: value for name, value in os.environ.items() if name not in equal})
    output = _Output()
    with looks, output:
        refused = _import_all(request["statements"])
    if refused is None and output.text:
        refused = "they print when they are imported: %s" % output.text
    if refused is None and len(sys._current_frames()) > 1:
        refused = "they start threads when they are imported"
    refused = refused or looks.refusal(ours=[base.variables])
    report = {"refused": refused, "missing": sorted(looks.missing)}
    channel.send(frames.READY, {"packages": report})
    os._exit(0)


def _become(channel: Channel, base: BaseCopy, request: Dict[str, Any]) -> "Tuple[BaseCopy, PackageBase]":
    """Import the packages and freeze this process when the platform asks. Returns only in a thawed copy."""
    started_s = time.monotonic()
    filters = process.seccomp_filters()
    before = base_process.state()
    sources = SourceFiles()
    openings = Openings("/")  # as in init: recording a socket imports a module
    sources.watch()
    openings.watch()
    refused = _import_all(request["statements"])
    openings.stop()
    sources.stop()
    init_ms = (time.monotonic() - started_s) * 1000
    channel.send(frames.READY, {"init_ms": init_ms, "packages": {"refused": refused}})
    given, after = before["variables"], base_process.state()["variables"]
    packages = PackageBase(
        before,
        {name for name in {*given, *after} if given.get(name) != after.get(name)},
        {name.partition(".")[0] for name in (*sys.modules, *request["missing"])},
    )
    inspect: Any = sys.modules.get("inspect")
    if inspect is not None:
        # These caches contain the paths of modules. If a module's path is relative, the current folder is added to it.
        for cache in (inspect.modulesbyfile, inspect._filesbymodname):
            cache.clear()
    copy = base_process.freeze(channel, sources, filters=filters, original=base.variables, below=base.stamps)
    refused = own_file_in_the_way(packages.tried)
    if refused is not None:
        channel.send(frames.READY, {"packages": {"refused": refused}})
        os._exit(0)
    os.chdir(os.environ["LAMBDA_TASK_ROOT"])  # as init does before it imports anything
    for name, repair in _KEEPS_FOLDER.items():
        if name in sys.modules:
            repair(sys.modules[name], os.getcwd())
    return copy, packages


def own_file_in_the_way(tried: Set[str]) -> Optional[str]:
    """Why the function's own folder could change what the imports of the base find; None if it could not."""
    for entry in sorted(os.listdir(os.environ["LAMBDA_TASK_ROOT"])):
        if entry.endswith(_INSTALLED):
            return "the function's folder contains installed packages (%s)" % entry
        name = entry.partition(".")[0]
        if name in tried:
            return "the function's folder contains %s, which the packages may import" % entry
    return None


def _multiprocessing(process: Any, folder: str) -> None:
    process.ORIGINAL_DIR = folder


def _rich(rich: Any, folder: str) -> None:
    if hasattr(rich, "_IMPORT_CWD"):
        rich._IMPORT_CWD = folder


def _transformers(docstrings: Any, folder: str) -> None:
    if hasattr(docstrings, "PATH_TO_TRANSFORMERS"):
        path = type(docstrings.PATH_TO_TRANSFORMERS)
        docstrings.PATH_TO_TRANSFORMERS = path(folder).resolve() / "src" / "transformers"


# Modules that keep the name of the current folder. These functions give them, in each copy, the name that they would
# have kept without a base.
_KEEPS_FOLDER: Dict[str, Callable[[Any, str], None]] = {
    "multiprocessing.process": _multiprocessing,
    "rich": _rich,
    "transformers.utils.auto_docstring": _transformers,
}


def _import_all(statements: Sequence[str]) -> Optional[str]:
    """Execute import statements; returns why that failed, or None."""
    namespace = {"__name__": "__thawd__"}
    for statement in statements:
        try:
            exec(compile(statement, "<thawd>", "exec", dont_inherit=True), namespace)
        except BaseException as error:  # a package may raise anything
            return "`%s` failed: %s: %s" % (statement, type(error).__name__, error)
    return None


class _Output:
    """Within it, records what is printed, also by native code, instead of printing it."""

    def __enter__(self) -> None:
        process.flush_output()
        self._kept = [os.dup(1), os.dup(2)]
        self._file = os.memfd_create("output")
        for number in (1, 2):
            os.dup2(self._file, number)

    def __exit__(self, *error: object) -> None:
        import ctypes

        process.flush_output()
        ctypes.PyDLL(None).fflush(None)
        for number, kept in enumerate(self._kept, 1):
            os.dup2(kept, number)
            os.close(kept)
        printed = os.pread(self._file, _MOST_OUTPUT_BYTES, 0).decode("utf-8", "replace").strip()
        self.text = printed.splitlines()[0] if printed else ""
        os.close(self._file)


class _Looks:
    """Within it, records what Python code looks at that differs between functions.

    The process must not be used afterwards: code may keep references to the recording functions.

    Args:
        differing: the environment variables that do not have the same value in all functions on the base.

    Attributes:
        missing: first parts of the names of modules that were looked for and not found.
    """

    def __init__(self, differing: Dict[str, str]) -> None:
        self._differing = differing
        self._iterated = False  # whether all variables were looked at, for example to find those with a prefix
        self._seen: Dict[str, str] = {}  # what was looked at, and the place that did so first
        self.missing: Set[str] = set()
        self._over = False

    def __enter__(self) -> None:
        environ: Any = type(os.environ)
        value_of, note = environ.__getitem__, self._note_variable

        def getitem(own: Any, name: Any) -> Any:
            value = value_of(own, name)
            caller = sys._getframe(1)
            if (caller.f_globals.get("__name__"), caller.f_code.co_name) == ("collections.abc", "__iter__"):
                self._iterated = True
            else:
                note(name)
            return value

        def contains(own: Any, name: Any) -> bool:
            # All functions on the base have the same variables; only values differ. So this is not recorded.
            try:
                value_of(own, name)
            except KeyError:
                return False
            return True

        environ.__getitem__, environ.__contains__ = getitem, contains
        for name in ("getcwd", "getcwdb"):
            setattr(os, name, _Recorded(getattr(os, name), self._note_folder))
        for name in ("stat", "lstat", "open", "listdir", "scandir", "access", "readlink"):
            setattr(os, name, _Recorded(getattr(os, name), self._note_path))
        sys.argv = _Arguments(sys.argv, self._note)
        sys.meta_path.append(self)  # as a finder
        sys.addaudithook(self._audit)

    def __exit__(self, *error: object) -> None:
        self._over = True

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Record that no other finder has found the module."""
        self.missing.add(name.partition(".")[0])

    def refusal(self, *, ours: List[Dict[str, str]]) -> Optional[str]:
        """Why the packages must not be in a base; None if they may be.

        Args:
            ours: dictionaries with values of variables that are not the packages' own.
        """
        loaded = [name for name in _SEARCHES_PATH if name in sys.modules]
        if loaded:
            return "they load %s, which searches the function's folder" % loaded[0]
        if self._seen:
            seen = ("%s (%s)" % found for found in sorted(self._seen.items()))
            return "when they are imported, they look at %s" % ", ".join(seen)
        if self._iterated and (kept := self._kept([*ours, vars(os.environ)["_data"]])):
            return "when they are imported, they keep the value of the variable %s" % kept
        return None

    def _kept(self, ours: List[Any]) -> Optional[str]:
        """A variable whose value is found in an object, although no code has asked for that variable alone."""
        values = {value: name for name, value in self._differing.items() if len(value) >= _RECOGNIZABLE}
        left_out = {id(one) for one in (*ours, values, self._differing)}
        holders = [one for one in gc.get_objects() if id(one) not in left_out and not isinstance(one, FrameType)]
        while holders:
            for held in gc.get_referents(holders.pop()):
                if isinstance(held, (dict, tuple)) and not gc.is_tracked(held) and id(held) not in left_out:
                    holders.append(held)  # it holds only simple objects, so it is not among the collector's objects
                text = held.decode("latin-1") if isinstance(held, bytes) else held if isinstance(held, str) else ""
                for value, name in values.items():
                    if value in text:
                        return name
        return None

    def _note(self, what: str) -> None:
        if self._over or what in self._seen:
            return
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__") in _BETWEEN:
            frame = frame.f_back
        if frame is None:
            self._seen[what] = "native code"
        elif what != _FOLDER or frame.f_globals.get("__name__") not in ("inspect", *_KEEPS_FOLDER):
            self._seen[what] = "%s, line %d" % (frame.f_code.co_filename, frame.f_lineno)

    def _note_variable(self, name: Any) -> None:
        text = os.fsdecode(name)
        if text in self._differing:
            self._note("the variable %s" % text)

    def _note_folder(self, *_: Any) -> None:
        self._note(_FOLDER)

    def _note_path(self, path: Any = ".", *_: Any) -> None:
        try:
            is_relative = not os.path.isabs(path)
        except TypeError:
            return  # a descriptor
        if is_relative:
            self._note_folder()

    def _audit(self, event: str, arguments: Any) -> None:
        if event == "open":
            self._note_path(arguments[0])
        elif event == "os.chdir":
            self._note_folder()
        elif event in _STARTS:
            self._note("the output or the end of a program")


class _Recorded:
    """Replaces a function of ``os``. Not a function, because Python would make one a method of a class."""

    def __init__(self, function: Callable[..., Any], record: Callable[..., Any]) -> None:
        self._function = function
        self._record = record

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._record(*args)
        return self._function(*args, **kwargs)


class _Arguments(List[str]):
    """Replaces ``sys.argv``."""

    def __init__(self, arguments: List[str], note: Callable[[str], None]) -> None:
        super().__init__(arguments)
        self._note = note

    def __getitem__(self, index: Any) -> Any:
        self._note("sys.argv")
        return super().__getitem__(index)

    def __contains__(self, argument: object) -> bool:
        self._note("sys.argv")
        return super().__contains__(argument)

    def __iter__(self) -> Any:
        self._note("sys.argv")
        return super().__iter__()
