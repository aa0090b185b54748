"""Prepares functions for the planner: copies their code, installs their requirements, applies the rules, measures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from thawd.deploy.packages import elf, wheels
from thawd.deploy.packages.contents import Item, items_of
from thawd.deploy.packages.distributions import Distribution, brought_by, groups, read_distributions
from thawd.deploy.packages.measuring import Packer, code_piece, piece_of
from thawd.deploy.packages.removal import RULES, Removed, slim
from thawd.deploy.packages.sizes import Contents
from thawd.deploy.packages.targets import Limits, PackageError, Target, python_version
from thawd.errors import EnvironmentBuildError, StoreError
from thawd.publishing.interpreters import find_interpreter
from thawd.publishing.requirement_files import names
from thawd.resources import NODE_RUNTIMES, PROVIDED_RUNTIMES, PYTHON_RUNTIMES, Function
from thawd.stores.code_copies import PackageStore

Progress = Callable[[str], None]
"""Called with lines about steps that take long."""

_REQUIREMENTS = "requirements.txt"
_MIB = 1024 * 1024
# How many files for another machine a note lists.
_LISTED = 3


@dataclass(frozen=True, slots=True)
class Prepared:
    """A function, ready to be planned.

    Attributes:
        function: the function.
        target: what it is packaged for.
        code: the files of its code.
        distributions: what it requires, without the files that rules took away.
        contents: the sizes, for the planner.
        removed: what the rules took away.
        before_bytes: size of all files before that.
        notes: what the user should know.
    """

    function: Function
    target: Target
    code: Sequence[Item]
    distributions: Mapping[str, Distribution]
    contents: Contents
    removed: Sequence[Removed]
    before_bytes: int
    notes: Sequence[str] = ()


@dataclass(slots=True)
class _Installed:
    """An installed requirements file, with its distributions."""

    distributions: list[Distribution]
    groups: dict[str, str]
    chains: dict[str, tuple[str, ...]]
    slimmed: dict[frozenset[str], tuple[list[Distribution], list[Removed]]] = field(default_factory=dict)


class Preparation:
    """Prepares functions. Requirements that several functions have are installed once.

    Args:
        scratch: a folder for copies and installed packages.
        lock: file descriptor that installers inherit.
        limits: Lambda's limits.
        not_code: paths that are left out of code folders.
        progress: called with lines about steps that take long.
    """

    def __init__(
        self, scratch: Path, lock: int, limits: Limits, *, not_code: Collection[Path], progress: Progress
    ) -> None:
        self._not_code = not_code
        self._scratch = scratch
        self._lock = lock
        self._limits = limits
        self._progress = progress
        self._code = PackageStore(scratch / "code")
        self._installed: dict[tuple[Path, Target], _Installed] = {}
        self._packer = Packer()

    def prepare(self, function: Function, target: Target, *, without: Collection[str] = ()) -> Prepared:
        """Prepare a function. Blocks, for minutes if packages are downloaded.

        Args:
            function: the function.
            target: what it is packaged for.
            without: names of rules that are not applied.

        Raises:
            PackageError: the requirements cannot be installed, or the code has files that cannot be packed.
            StoreError: the code cannot be read, or contains links to nothing or to something outside its folder.
        """
        try:
            code = items_of(self._code.publish(function.code, exclude=self._not_code).path)
        except (StoreError, PackageError) as error:
            raise PackageError(f"functions.{function.name}: {error.message}") from error
        notes = _foreign("the code", code, target)
        if without:
            rules = ", ".join(rule for rule in RULES if rule in without)
            notes.append(f"not left out, because the import of the handler needs such files: {rules}")
        installed = _Installed([], {}, {})
        if (requirements := _requirements_of(function)) is not None and target.python is not None:
            if function.requirements is None:
                notes.append(f"{_REQUIREMENTS} is in the code folder, so the package contains what it requires")
            installed = self._install(function, requirements, target)
        key = frozenset(without)
        if key not in installed.slimmed:
            installed.slimmed[key] = slim(installed.distributions, without=key)
        distributions, removed = installed.slimmed[key]
        for each in distributions:
            notes += _foreign(each.name, each.items, target)
        return Prepared(
            function,
            target,
            code,
            {each.name: each for each in distributions},
            self._contents(function, target, code, distributions, installed),
            removed,
            _bytes(code) + sum(_bytes(each.items) for each in installed.distributions),
            notes,
        )

    def _install(self, function: Function, requirements: Path, target: Target) -> _Installed:
        key = (requirements, target)
        if key not in self._installed:
            self._progress(f"installing {requirements} for {target}")
            folder = self._scratch / f"requirements-{len(self._installed)}"
            try:
                wheels.install(requirements, target, folder, lock=self._lock, environ=wheels.installer_environment())
                found = read_distributions(folder, list(names(requirements)))
            except (PackageError, EnvironmentBuildError) as error:
                raise PackageError(f"functions.{function.name}: {error.message}") from error
            self._installed[key] = _Installed(found, groups(found), brought_by(found))
        return self._installed[key]

    def _contents(
        self,
        function: Function,
        target: Target,
        code: Sequence[Item],
        distributions: Sequence[Distribution],
        installed: _Installed,
    ) -> Contents:
        total = _bytes(code) + sum(_bytes(each.items) for each in distributions)
        # An image needs no sizes of zip files, and compressing its files would take minutes.
        fits = total < self._limits.unpacked_bytes + function.ephemeral_storage_mb * _MIB
        packer = self._packer if fits else None
        if fits:
            self._progress(f"measuring {function.name}")
        return Contents(
            function=function.name,
            handler=function.handler,
            runtime=target.runtime if target.python is not None else function.runtime,
            architecture=target.architecture,
            code=code_piece(code, packer),
            pieces=tuple(
                piece_of(each, group=installed.groups[each.name], brought_by=installed.chains[each.name], packer=packer)
                for each in distributions
            ),
            ephemeral_storage_mb=function.ephemeral_storage_mb,
        )


def target_of(function: Function, *, architecture: str, python: tuple[int, int] | None, folder: Path) -> Target:
    """Return what a function is packaged for. Blocks: it may run the function's interpreter.

    Args:
        function: the function.
        architecture: Lambda's name of the architecture.
        python: the version to package for; None: that of the function's runtime or interpreter.
        folder: folder of the configuration file.

    Raises:
        PackageError: the function's interpreter does not work, or Lambda has no runtime of its version.
    """
    if function.runtime in (*NODE_RUNTIMES, *PROVIDED_RUNTIMES):
        return Target(python=None, architecture=architecture)
    if python is None and function.runtime in PYTHON_RUNTIMES:
        python = python_version(function.runtime or "")
    if python is None:
        try:
            version = find_interpreter(function.python, folder=folder).version
        except EnvironmentBuildError as error:
            raise PackageError(
                f"functions.{function.name}: {error.message}; or name a version with --python"
            ) from error
        python = python_version(f"{version[0]}.{version[1]}")
    return Target(python=python, architecture=architecture)


def _requirements_of(function: Function) -> Path | None:
    """Return a function's requirements file: the one that it declares, or else the one in its code folder."""
    if function.requirements is not None:
        return function.requirements
    beside = function.code / _REQUIREMENTS
    return beside if beside.is_file() else None


def _foreign(whose: str, items: Sequence[Item], target: Target) -> list[str]:
    """Return a note if there are programs or shared objects for another kind of machine."""
    foreign = []
    for item in items:
        if item.is_file and (".so" in item.path.rpartition("/")[2] or item.mode & 0o111):
            read = elf.read(item.source)
            if read is not None and read.machine != target.machine:
                foreign.append(f"{item.path} ({read.machine})")
    if not foreign:
        return []
    listed = ", ".join(foreign[:_LISTED]) + (f" and {len(foreign) - _LISTED} more" if len(foreign) > _LISTED else "")
    return [f"{whose} contains files that do not run on {target.architecture}: {listed}"]


def _bytes(items: Sequence[Item]) -> int:
    return sum(item.size_bytes for item in items)
