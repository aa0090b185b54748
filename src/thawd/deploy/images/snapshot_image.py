"""Makes a container image that contains thawd, a function, and the function's snapshot.

The image begins with that of the function (`function_image`). On it lie a layer with thawd and the packages that it
needs, a layer with a configuration and a start script, and a layer with the snapshot. For the last one, the function is
published and frozen in the image, with the image as the root, so that all paths are those that a container sees. The
snapshot is kept in a store of chunks in the image, with the key of this function: where the container starts, thawd
receives it from there, as from any store. So the files' contents, the kernel and the CPU are compared, and where
something does not fit, thawd says what, and initialises the function.

All layers but that of the snapshot are the same for the same inputs.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from thawd import __file__ as package_file
from thawd.config.document import read_document
from thawd.deploy.images import run_instruction
from thawd.deploy.images.function_image import FunctionImageRequest, build_function
from thawd.deploy.images.host_files import HostFiles
from thawd.deploy.images.stage_state import StageState, from_image, store
from thawd.errors import ImageError
from thawd.oci import documents
from thawd.oci.image_store import Images
from thawd.oci.layer_writing import Layer, NewEntry, add_parents, write_layer
from thawd.oci.removing import remove_tree
from thawd.publishing.interpreters import Interpreter, find_interpreter
from thawd.resources import MEMORY_MB_PER_VCPU, Function
from thawd.snapshot.engine import LIBRARY_NAME, PROGRAM_NAME, native_folder, unavailable
from thawd.system import folders

PORT = 8350
_OWN = "opt/thawd"
_PACKAGES = f"{_OWN}/python"
_CONFIG = f"{_OWN}/thawd.toml"
_START = f"{_OWN}/start"
_PRIME = f"{_OWN}/prime.json"
_STORE = f"{_OWN}/snapshots"
_KEY = f"{_OWN}/snapshots.key"
_DATA = "/var/thawd"
_FREEZER = "thawd.deploy.images.freeze_in_image"
_EXTRAS = ("chunks",)
# Only needed to install packages, which the image has already; it takes 55 MB.
_LEFT_OUT = frozenset({"uv"})
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(\[[^\]]*\])?[^;]*(?:;(.*))?")
_EXTRA_MARKER = re.compile(r"extra\s*==\s*[\"']([A-Za-z0-9._-]+)[\"']")
# Options of a function that name places of the machine on which the image is built.
_OF_THE_MACHINE = frozenset({"code", "requirements", "python", "runtime", "environment", "prime"})
_NOT_SUPPORTED = ("sources", "url", "on_success", "on_failure", "dead_letter", "provisioned_schedule", "tenants")
_SCRIPT = """#!/bin/sh
# The variables are those of the freeze: a function inherits some of them.
export HOME=/root PYTHONPATH=/{packages}{exports}
mkdir -p -m 700 {data} || exit 1
if [ ! -e {data}/snapshots.key ]; then
  cp /{key} {data}/snapshots.key && chmod 600 {data}/snapshots.key || exit 1
fi
# Without a key, only this container can reach the server.
if [ -n "$THAWD_KEY" ]; then
  export THAWD_HOST="${{THAWD_HOST:-0.0.0.0}}"
fi
exec {python} -m thawd up --config /{config} "$@"
"""
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH")


@dataclass(frozen=True, slots=True)
class SnapshotImageRequest:
    """The function of which an image with a snapshot is made.

    Attributes:
        function: what `function_image` needs.
        declared: the function's table in thawd.toml.
        routes: routes of thawd.toml that lead to the function.
    """

    function: FunctionImageRequest
    declared: Mapping[str, object]
    routes: Mapping[str, object]

    @classmethod
    def of(cls, function: FunctionImageRequest, config: Path, on_line: Callable[[str], None]) -> SnapshotImageRequest:
        """Return the request for a function that a configuration file declares.

        Args:
            function: what `function_image` needs.
            config: the file, which has no mistakes.
            on_line: called with a line about what the image leaves out.
        """
        document: Mapping[str, Any] = read_document(config)
        name = function.function.name
        routes = document.get("routes", {})
        own = {path: to for path, to in routes.items() if name == (to if isinstance(to, str) else to.get("function"))}
        left_out = [f"[{part}]" for part in ("buckets", "tables", "queues", "schedules", "http") if document.get(part)]
        if left_out:
            on_line(f"left out of the image: {', '.join(left_out)}")
        return cls(function, document["functions"][name], own)


def build_with_snapshot(images: Images, request: SnapshotImageRequest, on_line: Callable[[str], None]) -> str:
    """Build the image, and return the digest of its manifest. Blocks.

    Args:
        images: the store.
        request: the function.
        on_line: called with each line of progress.

    Raises:
        ImageError: the function cannot be frozen in an image, with the reason (HTTP 400).
        ThawdError: its own image cannot be made; see `build_function`.
        OSError: the disk failed or is full.
    """
    function = request.function.function
    interpreter = _checked(request)
    with images.adding():
        base = build_function(images, request.function, on_line)
        state = from_image(images.image(base))
        python = f"/var/lang/bin/python{'.'.join(map(str, interpreter.version[:2]))}"
        on_line("adding thawd and the packages that it needs")
        state.add(_layer(images, _thawd()), "thawd")
        state.add(_layer(images, _settings(request, state, python)), f"settings of {function.name}")
        state.add(_snapshot(images, state, function, python, on_line), f"snapshot of {function.name}")
        state.config = replace(
            state.config,
            entrypoint=[f"/{_START}"],
            cmd=[],
            exposed_ports={f"{PORT}/tcp": {}},
        )
        return store(images, state, architecture=documents.machine_architecture())


def _checked(request: SnapshotImageRequest) -> Interpreter:
    function = request.function.function
    if (why := unavailable()) is not None:
        raise ImageError(f"--with-snapshot: {why}")
    if not function.snapshot:
        raise ImageError(f"--with-snapshot: the function {function.name} has snapshot = false")
    if unsupported := [name for name in _NOT_SUPPORTED if request.declared.get(name)]:
        raise ImageError(
            f"--with-snapshot: an image has one function and its routes, but {function.name} also has "
            f"{', '.join(unsupported)}"
        )
    version = function.python
    if version is None and function.runtime is not None:
        version = function.runtime.removeprefix("python")
    interpreter = find_interpreter(version, folder=request.function.folder, environ=request.function.environ)
    if interpreter.version[:2] != sys.version_info[:2]:
        own = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise ImageError(
            f"--with-snapshot: the function {function.name} uses {interpreter}, but this thawd runs with Python {own}. "
            "One interpreter runs both in the image: execute thawd with the function's version"
        )
    return interpreter


def _layer(images: Images, entries: dict[str, NewEntry]) -> Layer:
    add_parents(entries, list(entries))
    return write_layer(images.blobs, entries)


def _thawd() -> dict[str, NewEntry]:
    """Return thawd, its compiled parts, and the packages that it needs."""
    host = HostFiles()
    host.add_tree(Path(package_file).parent, f"{_PACKAGES}/thawd", without=frozenset({"__pycache__"}))
    native = native_folder()
    assert native is not None
    for name in (LIBRARY_NAME, PROGRAM_NAME):
        host.add_file(Path(native, name), f"{_PACKAGES}/thawd/{name}")
    for found in _needed():
        for file in found.files or ():
            if file.parts[0] in ("..", "/") or file.suffix == ".pyc":
                continue
            # Names paths of this machine, and is written by what installed the package.
            if file.name in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json"):
                continue
            path = Path(str(found.locate_file(file)))
            if path.is_file():
                host.add_file(path, f"{_PACKAGES}/{file.as_posix()}")
    objects = [entry.content for entry in host.entries.values() if isinstance(entry.content, Path)]
    host.add_libraries([path for path in objects if ".so" in path.name], elsewhere="var/lang/lib")
    return host.entries


def _needed() -> list[metadata.Distribution]:
    """Return the installed packages that thawd needs, without itself, sorted by their names."""
    found: dict[str, metadata.Distribution] = {}
    waiting: list[tuple[str, tuple[str, ...]]] = [("thawd", _EXTRAS)]
    while waiting:
        name, extras = waiting.pop()
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another platform or version of Python
        if name != "thawd":
            if name in found:
                continue
            found[name] = distribution
        for text in distribution.requires or ():
            match = _REQUIREMENT.match(text)
            if match is None:
                continue
            extra = _EXTRA_MARKER.search(match[3] or "")
            required = re.sub(r"[-_.]+", "-", match[1]).lower()
            if required not in _LEFT_OUT and (extra is None or extra[1] in extras):
                wanted = tuple(part.strip() for part in (match[2] or "[]")[1:-1].split(",") if part.strip())
                waiting.append((required, wanted))
    return [found[name] for name in sorted(found)]


def _settings(request: SnapshotImageRequest, state: StageState, python: str) -> dict[str, NewEntry]:
    """Return the configuration and the start script."""
    function = request.function.function
    table: dict[str, object] = {
        **{name: value for name, value in request.declared.items() if name not in _OF_THE_MACHINE},
        "code": "/var/task",
        "python": python,
        # Otherwise it depends on the number of cores of the machine that the container starts on.
        "environment": {"OMP_NUM_THREADS": str(_threads(function)), **function.environment},
    }
    entries: dict[str, NewEntry] = {_DATA[1:]: NewEntry(0o700)}  # a volume can be mounted there
    if function.prime is not None:
        entries[_PRIME] = NewEntry(0o600, function.prime)
        table["prime"] = f"/{_PRIME}"
    server: dict[str, object] = {
        "data": _DATA,
        "snapshot_store": f"/{_STORE}",
        # A container engine may allow no namespaces, and a snapshot that was frozen with them needs them.
        "private_tmp": False,
        "paths": "real",
    }
    document: dict[str, Mapping[str, object]] = {
        "server": server,
        "functions": {function.name: table},
        "routes": request.routes,
    }
    entries[_CONFIG] = NewEntry(0o600, _toml(document).encode())
    exports = "".join(f" {name}={json.dumps(state.env[name])}" for name in _PASSED_ON if name in state.env)
    script = _SCRIPT.format(packages=_PACKAGES, exports=exports, data=_DATA, key=_KEY, python=python, config=_CONFIG)
    entries[_START] = NewEntry(0o755, script.encode())
    return entries


def _threads(function: Function) -> int:
    return max(1, min(os.cpu_count() or 1, function.memory_mb // MEMORY_MB_PER_VCPU))


def _toml(document: Mapping[str, Mapping[str, object]]) -> str:
    return "".join(f"{json.dumps(name)} = {_value(table)}\n" for name, table in document.items() if table)


def _value(value: object) -> str:
    """Return a value of a document in TOML. Dates do not occur in thawd.toml."""
    if isinstance(value, Mapping):
        pairs = (f"{json.dumps(name, ensure_ascii=False)} = {_value(each)}" for name, each in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _snapshot(
    images: Images, state: StageState, function: Function, python: str, on_line: Callable[[str], None]
) -> Layer:
    """Freeze the function in the image, and return the layer with its snapshot and with byte code.

    Raises:
        ImageError: the function cannot be frozen, with the reason (HTTP 400).
    """
    on_line(f"initialising and freezing {function.name} in the image")
    root = images.tree(state.layer_digests, f"the image of {function.name}")
    arguments = [python, "-m", _FREEZER, function.name, f"/{_CONFIG}", f"/{_STORE}", f"/{_KEY}"]
    env = {**state.env, "HOME": "/root", "PYTHONPATH": f"/{_PACKAGES}"}
    folders.make(images.folder / "new", mode=0o700)
    work = Path(tempfile.mkdtemp(dir=images.folder / "new", prefix="freeze-"))
    try:
        command = run_instruction.Command(arguments, env, "/")
        changes = run_instruction.run(root, work / "tree", command, on_line, owners=images.owners(root))
        kept = {path: entry for path, entry in changes.items() if _is_kept(path)}
        add_parents(kept, list(kept), changes)
        if not any(path.startswith(f"{_STORE}/") for path in kept):
            raise ImageError(f"--with-snapshot: {function.name} left no snapshot in the image")
        return write_layer(images.blobs, kept)
    finally:
        remove_tree(work)


def _is_kept(path: str) -> bool:
    parts: Iterable[str] = path.split("/")
    return path == _KEY or path.startswith(f"{_STORE}/") or (path.endswith(".pyc") and "__pycache__" in parts)
