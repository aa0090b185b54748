"""Builds versions of functions whose code is a container image: finds the image's root, and what to execute in it.

A version's image is fixed by its digest. As long as a version uses an image, the image has a name of its own in the
store of images, so that it is not removed as unused, and its root is locked.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from thawd import __file__ as package_file
from thawd.environments import boto3_for_functions
from thawd.environments.entry_points import EntryPoint, entry_point_of, extensions_of
from thawd.environments.runtime_programs import Program
from thawd.environments.trace_variables import TraceTargets
from thawd.environments.version import SITE, Variables, Version, variables_of
from thawd.errors import EnvironmentBuildError, ImageError
from thawd.oci.image_lookup import obtain
from thawd.oci.image_store import Images
from thawd.oci.root import Root
from thawd.publishing.interpreters import ask_in_image
from thawd.resources import Bucket, Function
from thawd.snapshot.disk.root_mounts import BUCKETS, NATIVE, PACKAGE, RootMounts
from thawd.snapshot.engine import native_folder

_RUNTIME_FOLDER = "/var/runtime"
_OF_A_SERVER = re.compile(r"(/.+)/functions/[0-9a-f]{64}")

Progress = Callable[[str], None]


class RootHost(Protocol):
    """Starts processes in a root; see `Launcher`."""

    def why_no_root(self, root: RootMounts) -> str | None:
        """Return why processes cannot have this root; None: they can."""

    def root_command(self, root: RootMounts) -> list[str]:
        """Return the command line that executes a program in a root."""


@dataclass(frozen=True, slots=True)
class ImageBuild:
    """A function with a container image, and what its build needs from the configuration.

    Attributes:
        function: as declared.
        number: the version's number, or ``$LATEST``.
        folder: the folder of ``thawd.toml``, where relative paths begin.
        buckets: declared buckets, for ``thawd.bucket``.
        aws: endpoint and credentials for AWS's SDKs.
        traces: where the function sends what it traces; None: nothing is traced.
    """

    function: Function
    number: str
    folder: Path
    buckets: Mapping[str, Bucket]
    aws: Mapping[str, str] | None
    traces: TraceTargets | None = None


class ContainerImages:
    """Builds the versions of functions with container images. All methods block.

    Args:
        images: the store of images.
        data: the data folder.
        environ: environment variables, for credentials of registries.

    Attributes:
        host: starts processes in roots; None: this server cannot.
    """

    def __init__(self, images: Images, data: Path, *, environ: Mapping[str, str]) -> None:
        self._images = images
        self._data = data
        # Several servers may share a store, so each has names of its own. They are paths, so lists of images lack them.
        self._names = f"{data.absolute()}/functions/"
        self._lock = threading.Lock()
        # Versions of interpreters in roots that worked, so that a reload does not start each of them again.
        self._tried: dict[tuple[str, ...], str] = {}
        self._in_use: dict[str, ExitStack] = {}  # by digest; each holds the lock of the image's root
        self._environ = environ
        self.host: RootHost | None = None

    def digest_of(self, reference: str, *, folder: Path, on_line: Progress = lambda line: None) -> str:
        """Return the digest of the image with this reference, which is then in the store, and kept until `release`.

        Raises:
            ImageError: there is no such image, or it cannot be used (HTTP 400).
        """
        with self._images.adding():  # until the image has its name, it may be removed as unused
            if reference.startswith("sha256:"):
                digest = self._images.image(reference).digest
            else:
                digest = obtain(self._images, reference, folder=folder, environ=self._environ, on_line=on_line)
            name = self._names + digest.partition(":")[2]
            if self._images.names().get(name) != digest:
                self._images.set_name(name, digest)
        return digest

    def build(self, wanted: ImageBuild, *, on_line: Progress) -> Version:
        """Return the version of a function with a container image, with generation 0.

        Args:
            wanted: the function, and the parts of the configuration that it needs.
            on_line: called with lines about steps that take long.

        Raises:
            EnvironmentBuildError: the image cannot run here; the message says why and what to do.
            ImageError: there is no such image, or it cannot be used (HTTP 400).
            OSError: the disk failed or is full.
        """
        function = wanted.function
        assert function.image is not None
        root = self._root(self.digest_of(function.image, folder=wanted.folder, on_line=on_line), on_line)
        entry = entry_point_of(function, root)
        mounts = _mounts(root, entry, wanted.buckets)
        entry, version_text = self._checked(function, entry, mounts)
        program = None if entry.python is not None else _program(entry, root)
        return Version(
            function=function,
            generation=0,
            python=Path(entry.argv[0] if entry.python is None else entry.python),
            python_version=version_text,
            code=str(root.folder / entry.task_root.lstrip("/")),
            variables=Variables(self._variables(wanted, entry, root, version_text=version_text)),
            number=wanted.number,
            program=program,
            root=mounts,
            image_digest=root.digest,
        )

    def release(self, keep: Collection[str]) -> None:
        """Let go of images that no version uses any more.

        Args:
            keep: digests of the images in use, without the algorithm.
        """
        with self._lock:
            for digest in [one for one in self._in_use if one.partition(":")[2] not in keep]:
                self._in_use.pop(digest).close()
                self._tried.clear()
        if not self._images.folder.is_dir():
            return
        for name in self._images.names():
            is_own = name.startswith(self._names)
            if name.removeprefix(self._names) not in keep if is_own else _is_left_over(name):
                self._images.remove_name(name)

    def _root(self, digest: str, on_line: Progress) -> Root:
        """Return the unpacked image, locked until `release`.

        Raises:
            ImageError: the image is broken, or for another architecture (HTTP 400).
        """
        with self._lock:
            for attempt in (1, 2):
                root = self._images.root(digest, on_line=on_line)
                if digest in self._in_use:
                    return root
                lock = ExitStack()
                try:
                    lock.enter_context(self._images.using(root))
                except ImageError:
                    if attempt == 2:
                        raise
                    continue  # it was removed as unused after it was found
                self._in_use[digest] = lock
                return root
        raise AssertionError("the last attempt returns or raises")

    def _checked(self, function: Function, entry: EntryPoint, mounts: RootMounts) -> tuple[EntryPoint, str]:
        """Try the root; ask its interpreter for its version.

        Returns:
            What to execute, and the interpreter's version, which is empty without an interpreter.

        Raises:
            EnvironmentBuildError: the kernel refuses the root, or the function needs thawd's runtime.
        """
        what = f"functions.{function.name}: the image {function.image}"
        tried = (*mounts.options, entry.python or "", *map("=".join, sorted(entry.variables.items())))
        if (version_text := self._tried.get(tried)) is not None:
            return entry, version_text
        why = "this server cannot start processes in a root" if self.host is None else self.host.why_no_root(mounts)
        if why is not None:
            raise EnvironmentBuildError(f"{what} cannot run on this machine: {why}")
        assert self.host is not None
        version: tuple[int, int, int] | None = None
        if entry.python is not None:
            version, why_not = ask_in_image(entry.python, self.host.root_command(mounts), entry.variables)
            if version is None:
                entry = entry.as_program(f"thawd's runtime cannot run in {entry.python} of the image: {why_not}")
        if version is not None:
            self._tried[tried] = ".".join(map(str, version))
            return entry, self._tried[tried]
        if function.most_in_environment > 1 or function.prime is not None:
            raise EnvironmentBuildError(
                f"{what} is executed as a program ({entry.why_program}); the options batch, concurrency and prime are "
                "for Python functions"
            )
        return entry, ""

    def _variables(self, wanted: ImageBuild, entry: EntryPoint, root: Root, *, version_text: str) -> dict[str, str]:
        """Return the environment variables of an image's processes. The image's own take the place of the machine's."""
        made = variables_of(
            msgspec.structs.replace(wanted.function, handler=entry.handler, environment=dict(entry.variables)),
            task_root=Path(entry.task_root),
            python_version=version_text or "0.0",
            buckets={name: BUCKETS / name for name in wanted.buckets},
            own={},
            number=wanted.number,
            aws=wanted.aws,
            traces=wanted.traces,
        )
        made["PWD"] = entry.working_folder
        made["LAMBDA_RUNTIME_DIR"] = entry.variables.get("LAMBDA_RUNTIME_DIR", _RUNTIME_FOLDER)
        # The next server finds by this variable the processes that a killed server has left behind.
        made["THAWD_CODE"] = str(self._data / "images" / root.digest.partition(":")[2])
        made.pop(boto3_for_functions.VARIABLE, None)  # an image brings its own packages
        if "PYTHONPATH" in made:
            seen = str(PACKAGE / "runtime" / "site")
            parts = made["PYTHONPATH"].split(os.pathsep)
            made["PYTHONPATH"] = os.pathsep.join(seen if part == SITE else part for part in parts)
        if entry.python is not None:
            made["THAWD_LAYERS"] = "/opt"
            made["THAWD_WORKING_FOLDER"] = entry.working_folder
            return made
        for name in ("_HANDLER", "AWS_EXECUTION_ENV"):
            made.pop(name, None)
        for name in ("ORT_DISABLE_TELEMETRY", "OMP_NUM_THREADS"):
            if name not in entry.variables:
                made.pop(name, None)
        return made


def _is_left_over(name: str) -> bool:
    """Return whether a name keeps an image for a server that shared the store and whose data folder is gone."""
    found = _OF_A_SERVER.fullmatch(name)
    return found is not None and not Path(found[1]).is_dir()


def _mounts(root: Root, entry: EntryPoint, buckets: Mapping[str, Bucket]) -> RootMounts:
    own = {PACKAGE: Path(package_file).parent}
    native = native_folder()
    if native is not None:
        own[NATIVE] = Path(native)
    shared = {BUCKETS / name: bucket.path for name, bucket in buckets.items()}
    return RootMounts(root.folder, Path(entry.working_folder), own, shared)


def _program(entry: EntryPoint, root: Root) -> Program:
    title = f"image:{root.digest.partition(':')[2][:12]}"
    extensions = extensions_of(root)
    return Program("image", entry.argv, title, snap_start=False, extensions=extensions, why=entry.why_program)
