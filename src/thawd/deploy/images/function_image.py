"""Makes a container image of a function of thawd.toml: for Lambda, for thawd, and for any engine that runs containers.

The image is Lambda's base for the function's Python (`lambda_base`), with the packages of its requirements and its code
in /var/task, and the handler as CMD. The same files give the same image: times and owners are constants, and it has no
byte code. Environment variables of the function are not in the image, because they may be secret.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from thawd.deploy.images import lambda_base
from thawd.deploy.images.host_files import HostFiles
from thawd.deploy.images.installed_packages import add_package, packages
from thawd.deploy.images.stage_state import from_image, store
from thawd.errors import ImageError
from thawd.oci import documents
from thawd.oci.image_store import Images
from thawd.oci.layer_writing import Layer, add_parents, write_layer
from thawd.publishing.interpreters import find_interpreter, prepare_environment
from thawd.publishing.uv import find_uv
from thawd.resources import Function
from thawd.stores.code_copies import PackageStore

_TASK = "var/task"


@dataclass(frozen=True, slots=True)
class FunctionImageRequest:
    """The function of which an image is made.

    Attributes:
        function: the function as declared.
        folder: folder of thawd.toml, to which paths of interpreters are relative.
        data: the data folder, with the copies of code and the virtual environments.
        not_code: paths that are left out of the code.
        environ: environment variables for pip and uv.
    """

    function: Function
    folder: Path
    data: Path
    not_code: Collection[Path]
    environ: Mapping[str, str]


def build_function(images: Images, request: FunctionImageRequest, on_line: Callable[[str], None]) -> str:
    """Build the image of a function, and return the digest of its manifest. Blocks.

    Args:
        images: the store.
        request: the function.
        on_line: called with each line of progress.

    Raises:
        ImageError: the function is not one for thawd's Python runtime (HTTP 400).
        EnvironmentBuildError: its interpreter is missing, or its packages cannot be installed.
        StoreError: its code cannot be read.
        OSError: the disk failed or is full.
    """
    function = request.function
    if function.image is not None:
        raise ImageError(
            f"the code of the function {function.name} is the image {function.image} already; push it with "
            "`thawd image push`, or build it from its Dockerfile with --output"
        )
    if function.runtime is not None and not function.runtime.startswith("python"):
        raise ImageError(
            f"the function {function.name} has the runtime {function.runtime}; images are made of Python functions. "
            "Write a Dockerfile for it, and build it with `thawd image build`"
        )
    interpreter = find_interpreter(_python(function), folder=request.folder, environ=request.environ)
    environments = request.data / "environments"
    with images.adding():
        base = lambda_base.make(
            images, interpreter, environments=environments, environ=request.environ, on_line=on_line
        )
        state = from_image(images.image(base))
        if function.requirements is not None:
            installed = asyncio.run(
                prepare_environment(
                    function.requirements,
                    interpreter,
                    environments,
                    on_line=on_line,
                    environ=request.environ,
                    uv=find_uv(),
                )
            )
            state.add(_packages(images, installed), f"packages of {function.requirements.name}")
        package = PackageStore(request.data / "packages").publish(function.code, exclude=request.not_code)
        state.add(_code(images, package.path), f"code of {function.name}")
        state.config = replace(state.config, cmd=[function.handler])
        return store(images, state, architecture=documents.machine_architecture())


def _python(function: Function) -> str | None:
    if function.python is None and function.runtime is not None:
        return function.runtime.removeprefix("python")
    return function.python


def _packages(images: Images, installed: Path) -> Layer:
    host = HostFiles()
    for path in packages(installed):
        add_package(host, path, f"{_TASK}/{path.name}")
    add_parents(host.entries, list(host.entries))
    return write_layer(images.blobs, host.entries)


def _code(images: Images, package: Path) -> Layer:
    host = HostFiles()
    host.add_tree(package, _TASK)
    add_parents(host.entries, list(host.entries))
    return write_layer(images.blobs, host.entries)
