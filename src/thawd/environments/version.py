"""One published state of a function: everything that is needed to start its environments, fixed at publication."""

from __future__ import annotations

import functools
import os
import pwd
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from thawd import __file__ as package_file
from thawd.environments import boto3_for_functions
from thawd.environments.runtime_programs import Program
from thawd.environments.trace_variables import TraceTargets, trace_variables
from thawd.resources import LATEST, MEMORY_MB_PER_VCPU, REGION, Function
from thawd.snapshot.disk.places import RUNTIME, TASK, Places
from thawd.snapshot.disk.root_mounts import PACKAGE, RootMounts

GUARDED = "THAWD_AWS"
"""Environment variable. The value ``local`` means that thawd emulates AWS; functions' processes then refuse requests to
the real AWS.
"""
_ENDPOINT = "AWS_ENDPOINT_URL"
SITE = str(Path(package_file).parent / "runtime" / "site")
RUNTIME_FOLDER = Path(package_file).parent / "runtime"
_BOOTSTRAP = str(RUNTIME_FOLDER / "bootstrap.py")
# The only environment variables that functions inherit from the platform, so that secrets in the platform's other
# variables do not reach functions.
_PASSED_ON = ("PATH", "HOME", "LD_LIBRARY_PATH")


class Variables(Mapping[str, str]):
    """Environment variables that do not change.

    A server can have thousands of versions. Their variables have the same names, so versions share one table of names,
    and each has only a tuple of values. That takes a third of a dictionary's memory.
    """

    __slots__ = ("_places", "_values")

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._places = _places_of(tuple(variables))
        self._values = tuple(variables.values())

    def __getitem__(self, name: str) -> str:
        return self._values[self._places[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._values)


@functools.lru_cache(256)
def _places_of(names: tuple[str, ...]) -> dict[str, int]:
    return {name: place for place, name in enumerate(names)}


@dataclass(frozen=True, slots=True)
class Version:
    """A function, with the code and the interpreter that it was published with.

    Attributes:
        function: as declared.
        generation: counts publications of this function since the server started, from 1.
        python: the interpreter that runs it.
        python_version: for example ``3.11.7``.
        code: folder of the code, not changed after publication. A text, because a `Path` takes more memory.
        variables: environment variables common to all its processes.
        number: the version's number, or ``$LATEST``.
        program: the program that its environments execute instead of thawd's Python runtime; `python` is then the
            path of that program's file. None: thawd's Python runtime.
        wrapper: command line of a program that gets the interpreter's command line and executes it; empty: none.
        places: what its processes see at Lambda's paths; None: they see code and layers at their real paths.
        why_real: why they see the real paths; empty if they do not.
        root: the root of its processes, if it is a container image; `python` and the program are then paths in it,
            while `code` is a path of the machine. None: the processes see the machine's files.
        image_digest: digest of that image's manifest; empty without an image.
        debugged: whether a debugger can stop its processes (`thawd.environments.debugging`).
    """

    function: Function
    generation: int
    python: Path
    python_version: str
    code: str
    variables: Mapping[str, str]
    number: str = LATEST
    program: Program | None = None
    wrapper: tuple[str, ...] = ()
    places: Places | None = None
    why_real: str = ""
    root: RootMounts | None = None
    image_digest: str = ""
    debugged: bool = False

    @property
    def working_folder(self) -> str:
        """Where its processes are started. In a root, thawd-thaw then changes to the image's working folder."""
        return self.code if self.root is None else "/"

    @property
    def task_root(self) -> Path:
        """Folder of the code."""
        return Path(self.code)

    @property
    def paths(self) -> str:
        """The paths that the version's processes see: ``image``, ``lambda`` (Lambda's paths) or ``real``."""
        return "image" if self.root is not None else "real" if self.places is None else "lambda"

    @property
    def runtime_title(self) -> str:
        """The runtime's name in ``INIT_START``, for example ``python:3.11.7``."""
        return f"python:{self.python_version}" if self.program is None else self.program.title

    def argv(self, mode: str, descriptors: tuple[int, int, int]) -> list[str]:
        """Command line of a process of this version.

        Args:
            mode: what the process is to do; see `thawd.runtime.bootstrap`.
            descriptors: the process's ends of the channels control, services and lifeline.
        """
        bootstrap = _BOOTSTRAP if self.root is None else str(PACKAGE / "runtime" / "bootstrap.py")
        return [*self.wrapper, str(self.python), bootstrap, mode, *map(str, descriptors)]


def api_command(python: Path) -> tuple[str, ...]:
    """Command line that runs thawd's Python runtime as a client of the Runtime API, so that extensions can be used."""
    return (str(python), _BOOTSTRAP, "api")


def variables_of(  # noqa: PLR0913 - each is a source of variables
    function: Function,
    *,
    task_root: Path,
    python_version: str,
    buckets: Mapping[str, Path],
    own: Mapping[str, str],
    number: str = LATEST,
    layers: Sequence[Path] = (),
    aws: Mapping[str, str] | None = None,
    places: Places | None = None,
    traces: TraceTargets | None = None,
) -> dict[str, str]:
    """Environment variables of a function's processes, without those of `variables_of_environment`.

    Args:
        function: as declared; its own variables override all others but the reserved ones and those of `aws`. Its own
            ``AWS_ENDPOINT_URL`` overrides that of `aws`.
        task_root: folder of the code.
        python_version: version of the function's interpreter.
        buckets: folder of each bucket, for ``thawd.bucket``.
        own: the platform's own environment variables.
        number: the version's number.
        layers: folders of its layers, in order; if two layers have the same file, the file of the later one is used.
        aws: endpoint and credentials for AWS's SDKs; None: only what the function's own variables contain.
        places: what its processes see at Lambda's paths; None: they see the real paths.
        traces: where it sends what it traces; None: nothing is traced.

    Values that many functions have in common are interned, so that the functions share them.

    Source: AWS Lambda developer guide, "Defined runtime environment variables".
    """
    if places is not None:
        layers = () if places.layers is None else (places.layers,)
    root = str(task_root)
    shown_root = root if places is None else str(TASK)
    defaults = {
        "LANG": "en_US.UTF-8",
        "TZ": ":UTC",
        # As many OpenMP threads as the function has vCPUs, because several environments share the cores. With one
        # thread OpenMP makes no thread pool; a process with a pool could not be forked.
        "OMP_NUM_THREADS": sys.intern(str(max(1, min(os.cpu_count() or 1, function.memory_mb // MEMORY_MB_PER_VCPU)))),
        # ONNX Runtime's telemetry is off, because it holds locks on files, with which a process cannot be frozen, and
        # because thawd promises that no data leaves the machine.
        "ORT_DISABLE_TELEMETRY": "1",
    }
    if traces is not None:
        defaults |= trace_variables(traces, function=function.name, own=function.environment)
    reserved = {
        "_HANDLER": function.handler,
        "AWS_EXECUTION_ENV": sys.intern(f"AWS_Lambda_python{'.'.join(python_version.split('.')[:2])}"),
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_LAMBDA_FUNCTION_NAME": function.name,
        "AWS_LAMBDA_FUNCTION_VERSION": number,
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": sys.intern(str(function.memory_mb)),
        "AWS_LAMBDA_LOG_GROUP_NAME": function.log_group_name,
        "AWS_LAMBDA_LOG_FORMAT": function.log_format,
        "LAMBDA_TASK_ROOT": shown_root,
        "PWD": shown_root,
        "LAMBDA_RUNTIME_DIR": str(RUNTIME_FOLDER if places is None else RUNTIME),
        # The next server finds by this variable the processes that a killed server has left behind.
        "THAWD_CODE": root,
        "THAWD_BUCKETS": sys.intern(msgspec.json.encode({name: str(path) for name, path in buckets.items()}).decode()),
    }
    if function.batch is not None:
        reserved["THAWD_BATCH"] = "1"
    if function.concurrency > 1:
        # Source: AWS Lambda developer guide, "Lambda Managed Instances", for the variable with Lambda's name.
        reserved["THAWD_CONCURRENCY"] = reserved["AWS_LAMBDA_MAX_CONCURRENCY"] = str(function.concurrency)
    if function.log_format == "JSON":
        reserved["AWS_LAMBDA_LOG_LEVEL"] = function.application_log_level or "INFO"
    passed_on = {name: own[name] for name in _PASSED_ON if name in own and not _is_known_home(name, own[name])}
    variables = defaults | passed_on | function.environment | reserved | dict(aws or {})
    if _ENDPOINT in function.environment:
        variables[_ENDPOINT] = function.environment[_ENDPOINT]
    if python_version:
        major, minor = python_version.split(".")[:2]
        variables[boto3_for_functions.VARIABLE] = boto3_for_functions.boto3_for((int(major), int(minor)))
    if aws and aws.get(GUARDED) == "local":
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [variables.get("PYTHONPATH"), SITE]))
    if layers:
        # The runtime adds the layers to sys.path, as on Lambda; PYTHONPATH would also add them for other interpreters.
        variables["THAWD_LAYERS"] = os.pathsep.join(_seen(layer, places) for layer in reversed(layers))
    for name, paths in _layer_paths(layers, places).items():
        variables[name] = os.pathsep.join([*paths, variables[name]] if variables.get(name) else paths)
    return variables


def _is_known_home(name: str, value: str) -> bool:
    """Return whether it is the variable ``HOME`` with the user's home folder, which programs find without it.

    Lambda does not set ``HOME``.
    """
    try:
        return name == "HOME" and value == pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return False  # the user has no entry, so programs need the variable


def _seen(path: Path, places: Places | None) -> str:
    return str(path if places is None else places.seen(path))


def _layer_paths(layers: Sequence[Path], places: Places | None) -> dict[str, list[str]]:
    """Return the folders that the layers add to each search path, by variable.

    `thawd.runtime.search_path` adds Python's.

    Source: AWS Lambda developer guide, "Layer paths for each Lambda runtime". Lambda puts all layers into /opt. At real
    paths, each layer has its own folder.
    """
    parts_of = {
        "PATH": ("bin",),
        "LD_LIBRARY_PATH": ("lib",),
        "NODE_PATH": ("nodejs/node_modules",),
    }
    found = {
        name: [_seen(layer / part, places) for layer in reversed(layers) for part in parts if (layer / part).is_dir()]
        for name, parts in parts_of.items()
    }
    return {name: paths for name, paths in found.items() if paths}


def variables_of_environment(*, log_stream: str, initialization: str, identifier: str) -> dict[str, str]:
    """Return the environment variables that are different in each environment."""
    return {
        "AWS_LAMBDA_LOG_STREAM_NAME": log_stream,
        "AWS_LAMBDA_INITIALIZATION_TYPE": initialization,
        "THAWD_ENVIRONMENT": identifier,
    }
