"""Installs the packages that functions for Node require, as ``sam build`` does, with the machine's npm.

Packages are installed into a folder of the server, and not beside the code.

Source: SAM developer guide, "sam build"; npm documentation, "npm-ci".
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from thawd.deploy.projects.stacks import ProjectError
from thawd.errors import EnvironmentBuildError

_MANIFEST, _LOCKS, _SETTINGS = "package.json", ("npm-shrinkwrap.json", "package-lock.json"), ".npmrc"
_INSTALL = ("--omit=dev", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
_SOURCES = (".ts", ".tsx", ".mts", ".js", ".jsx", ".mjs", ".cjs")


def _nothing(manifest: Path, took_s: float) -> None:
    """Report nothing."""


class NpmPackages:
    """Installs packages. All methods block.

    Args:
        folder: the server's folder of virtual environments. Packages are kept there for the next package with the same
            manifest, and upkeep removes those that were not used for a week, as it removes virtual environments.
        environ: environment variables of npm.
        report: called after each installation with the package.json and the seconds that it took.
    """

    def __init__(
        self, folder: Path, environ: Mapping[str, str], *, report: Callable[[Path, float], object] = _nothing
    ) -> None:
        self._folder, self._environ, self._report = folder, environ, report

    @property
    def has_npm(self) -> bool:
        """Whether there is an npm."""
        return self._npm() is not None

    def _npm(self) -> str | None:
        return shutil.which("npm", path=self._environ.get("PATH"))

    def installed(self, source: Path) -> Path | None:
        """Return the folder ``node_modules`` with what a package.json requires, without its development packages.

        Args:
            source: the code folder.

        Returns:
            None if it requires nothing.

        Raises:
            ProjectError: package.json is malformed or requires what is outside of the folder, or there is no npm.
            EnvironmentBuildError: npm failed.
        """
        required = _required(source)
        if not required:
            return None
        program = self._npm()
        if program is None:
            raise ProjectError(f"{source / _MANIFEST} has dependencies, and there is no npm: install Node.js")
        files = [source / name for name in (_MANIFEST, *_LOCKS, _SETTINGS) if (source / name).is_file()]
        files += _local_files(source, required)
        made = self._folder / _digest(source, files, program)
        if not made.is_dir():
            begun_s = time.monotonic()
            self._install(program, source, files, made)
            self._report(source / _MANIFEST, time.monotonic() - begun_s)
        os.utime(made)  # upkeep removes by the time of the last use
        return made / "node_modules"

    def _install(self, program: str, source: Path, files: Sequence[Path], made: Path) -> None:
        """Install into a folder of its own, which gets its name only when it is whole."""
        self._folder.mkdir(parents=True, exist_ok=True)
        has_lock = any(file.name in _LOCKS for file in files)
        with tempfile.TemporaryDirectory(dir=self._folder, prefix="installing-") as scratch:
            place = Path(scratch) / "packages"
            for file in files:
                copy = place / file.relative_to(source)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, copy)
            command = [program, "ci" if has_lock else "install", *_INSTALL]
            self._run(command, place, what=f"the packages of {source / _MANIFEST}")
            (place / "node_modules").mkdir(exist_ok=True)  # of optional packages, none may fit this machine
            try:
                place.rename(made)
            except OSError:
                if not made.is_dir():  # another thread was faster
                    raise

    def _run(self, command: Sequence[str], folder: Path, *, what: str) -> None:
        ended = subprocess.run(
            command, cwd=folder, env=dict(self._environ), capture_output=True, text=True, errors="replace", check=False
        )
        if ended.returncode:
            said = (ended.stderr.strip() or ended.stdout.strip())[-2000:]
            raise EnvironmentBuildError(f"{what}: npm failed with status {ended.returncode}: {said}")


def _required(source: Path) -> dict[str, str]:
    """The dependencies in a folder's package.json."""
    file = source / _MANIFEST
    if not file.is_file():
        return {}
    try:
        document = json.loads(file.read_bytes())
        found = document.get("dependencies") or {}
        return {str(name): str(where) for name, where in found.items()}
    except (ValueError, AttributeError) as error:
        raise ProjectError(f"{file} cannot be read: {error}") from error


def _local_files(source: Path, required: Mapping[str, str]) -> Iterator[Path]:
    """The files in a folder that dependencies name.

    Raises:
        ProjectError: a dependency is a folder, or outside of the folder.
    """
    for name, where in required.items():
        if not where.startswith(("file:", "link:", "workspace:")):
            continue
        path = (source / where.partition(":")[2]).resolve()
        if not where.startswith("file:") or not path.is_file() or not path.is_relative_to(source.resolve()):
            raise ProjectError(f"{source / _MANIFEST}: {name} is {where}: run `npm install` in this folder yourself")
        yield source / path.relative_to(source.resolve())


def _digest(source: Path, files: Sequence[Path], program: str) -> str:
    """Names what is installed: by the manifest's files, and by the npm that installs them."""
    digest = hashlib.sha256(os.path.realpath(program).encode())
    for file in files:
        content = file.read_bytes()
        digest.update(f"\0{file.relative_to(source).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:32]
