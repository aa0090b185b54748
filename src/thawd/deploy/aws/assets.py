"""Makes the archives that a deployment uploads: the code of each function, and the layer with the package ``thawd``.

The same files give the same bytes, so the key of an archive, which contains its digest, changes only with its contents.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

import thawd
from thawd.config import Settings
from thawd.deploy.aws.functions import python_version, runtime_of
from thawd.deploy.aws.stack import Code, DeploymentError
from thawd.deploy.aws.uses import Uses, read_uses
from thawd.resources import Function
from thawd.stores.uploaded_code import MAX_UNZIPPED_BYTES

_FIRST_ON_AMAZON_LINUX_2023 = (3, 12)
_MACHINES = {"x86_64": "x86_64", "arm64": "aarch64"}
_LEFT_OUT = ("__pycache__", ".git", ".venv", ".mypy_cache", ".pytest_cache", ".ruff_cache")
# zip knows no earlier time.
_TIME = (1980, 1, 1, 0, 0, 0)
_INSTALL_TIMEOUT_S = 900


class Asset(msgspec.Struct, frozen=True, kw_only=True):
    """An archive to upload.

    Attributes:
        key: key of its object: the stack's name and the archive's SHA-256.
        file: the archive.
    """

    key: str
    file: Path


class Assets(msgspec.Struct, frozen=True, kw_only=True):
    """The archives of a deployment.

    Attributes:
        code: code of each function, by function name.
        layer_key: key of the layer's archive; None: no function needs the layer.
        archives: all archives.
    """

    code: dict[str, Code]
    layer_key: str | None
    archives: tuple[Asset, ...]


def default_runtime() -> str:
    """Lambda's name of the Python version that runs thawd."""
    return f"python{sys.version_info.major}.{sys.version_info.minor}"


def make_assets(settings: Settings, *, stack: str, folder: Path) -> Assets:
    """Make the archives of a configuration.

    Functions with the same code, requirements and runtime share an archive.

    Args:
        settings: the configuration.
        stack: name of the stack.
        folder: folder for the archives.

    Raises:
        DeploymentError: requirements cannot be installed for the target, or an archive is too large for Lambda.
    """
    made: dict[tuple[object, ...], Asset] = {}
    code = {}
    for function in settings.functions.values():
        runtime = runtime_of(function, default=default_runtime())
        version = python_version(runtime)
        same = (function.code, function.requirements, version)
        if same not in made:
            made[same] = _code_archive(settings, function, version, stack=stack, folder=folder)
        uses = None if version is None else read_uses(function.code, function.handler)
        code[function.name] = Code(key=made[same].key, uses=uses)
    layer = None
    if any((entry.uses or Uses()).has_stores for entry in code.values()):
        layer = _finished(_layer_files(), stack=stack, folder=folder)
    archives = {asset.key: asset for asset in [*made.values(), *([layer] if layer is not None else [])]}
    return Assets(code=code, layer_key=None if layer is None else layer.key, archives=tuple(archives.values()))


def _code_archive(
    settings: Settings, function: Function, version: tuple[int, int] | None, *, stack: str, folder: Path
) -> Asset:
    files = dict(_files(function.code, not_code=settings.not_code()))
    if function.requirements is None or version is None:
        return _finished(files, stack=stack, folder=folder, function=function.name)
    with tempfile.TemporaryDirectory(prefix="thawd-deploy-") as packages:
        _install(function, Path(packages), version, architecture=settings.deployment.architecture)
        installed = dict(_files(Path(packages), not_code=frozenset()))
        # The code goes before packages of the same name, as in the function's search path.
        return _finished({**installed, **files}, stack=stack, folder=folder, function=function.name)


def _files(folder: Path, *, not_code: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    """Yield the files in a folder, by their path in the archive.

    Raises:
        DeploymentError: a symbolic link leads out of the folder.
    """
    left_out = frozenset(not_code)
    root = folder.resolve()
    for parent, folders, names in os.walk(folder):
        here = Path(parent)
        folders[:] = sorted(
            name
            for name in folders
            if name not in _LEFT_OUT and here / name not in left_out and not (here / name / "pyvenv.cfg").exists()
        )
        for name in [*names, *(name for name in folders if (here / name).is_symlink())]:
            file = here / name
            if file in left_out or name.endswith(".pyc"):
                continue
            if file.is_symlink() and not file.resolve().is_relative_to(root):
                raise DeploymentError(f"{file} is a link that leads out of the code folder; put a copy there")
            if file.is_symlink() and file.is_dir():
                raise DeploymentError(f"{file} is a link to a folder, which archives cannot hold; put a copy there")
            if file.is_file():
                yield file.relative_to(folder).as_posix(), file


def _layer_files() -> Mapping[str, Path | bytes]:
    """The files of the layer. Modules have the same names there, so that they can import each other."""
    package = Path(thawd.__file__).parent
    return {
        "python/thawd/__init__.py": package / "runtime" / "deployed_services.py",
        "python/thawd/wire/__init__.py": b"",
        "python/thawd/wire/dynamodb_items.py": package / "wire" / "dynamodb_items.py",
    }


def _finished(files: Mapping[str, Path | bytes], *, stack: str, folder: Path, function: str = "") -> Asset:
    """Write an archive; its name becomes its digest when it is complete."""
    unpacked_bytes = 0
    descriptor, unfinished = tempfile.mkstemp(dir=folder, suffix=".part")
    os.close(descriptor)
    with zipfile.ZipFile(unfinished, "w", compression=zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, source in sorted(files.items()):
            data = source if isinstance(source, bytes) else source.read_bytes()
            is_program = isinstance(source, Path) and os.access(source, os.X_OK)
            entry = zipfile.ZipInfo(name, _TIME)
            entry.external_attr = (0o100755 if is_program else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            unpacked_bytes += len(data)
            archive.writestr(entry, data)
    if unpacked_bytes > MAX_UNZIPPED_BYTES:
        Path(unfinished).unlink()
        raise DeploymentError(
            f"functions.{function}.code: code and packages have {unpacked_bytes:,} bytes, and Lambda allows "
            f"{MAX_UNZIPPED_BYTES:,}; remove packages or files that the function does not need"
        )
    with Path(unfinished).open("rb") as written:
        digest = hashlib.file_digest(written, "sha256").hexdigest()
    file = Path(unfinished).rename(folder / f"{digest}.zip")
    return Asset(key=f"{stack}/{digest}.zip", file=file)


def _install(function: Function, target: Path, version: tuple[int, int], *, architecture: str) -> None:
    """Install a function's requirements for Lambda, from wheels.

    Raises:
        DeploymentError: there are no wheels for Lambda, or the requirements cannot be read.
    """
    # Source: Lambda developer guide, "Lambda runtimes": Amazon Linux 2 has glibc 2.26, Amazon Linux 2023 has 2.34.
    glibc = "manylinux_2_34" if version >= _FIRST_ON_AMAZON_LINUX_2023 else "manylinux2014"
    command = ["uv", "pip", "install", "--quiet", "--no-compile-bytecode", "--target", str(target)]
    command += [
        "--python-platform",
        f"{_MACHINES[architecture]}-{glibc}",
        "--python-version",
        ".".join(map(str, version)),
    ]
    command += ["--only-binary", ":all:", "--link-mode", "copy", "--requirement", str(function.requirements)]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    where = f"functions.{function.name}.requirements"
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S, env=environment, check=False
        )
    except FileNotFoundError:
        raise DeploymentError(
            f"{where}: packages for AWS are installed by uv, which is missing: pip install uv"
        ) from None
    except subprocess.TimeoutExpired:
        raise DeploymentError(f"{where}: uv was not finished after {_INSTALL_TIMEOUT_S} s; try again") from None
    if done.returncode:
        said = re.sub(r"(?<=://)[^/@\s]+@", "***@", done.stderr.strip())
        raise DeploymentError(
            f"{where}: the packages cannot be installed for python{version[0]}.{version[1]} on {architecture}: {said}"
        )
