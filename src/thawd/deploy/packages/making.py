"""Makes packages: prepares the functions, plans, writes the archives and tries them.

Each file appears in the output folder completely or not at all. Layers and parts have their digest in their name, and
are written before the zip file of the function that needs them. ``packages.json`` is written last. Then layers and
parts that it no longer names are removed. So a process that is killed leaves the packages of the last run, or complete
new ones.
Its unfinished files are in a folder ``.new-*``, which the next run removes. Two runs with one output folder take turns.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from thawd.config import Settings
from thawd.deploy.packages.planning import AUTO, FunctionPlan, Plan, plan
from thawd.deploy.packages.preparing import Preparation, Prepared, Progress, target_of
from thawd.deploy.packages.removal import RULES
from thawd.deploy.packages.targets import Limits, PackageError, Target
from thawd.deploy.packages.trial import FAILED, NOT_TRIED, Trial, try_import
from thawd.deploy.packages.writing import OF_A_DIGEST, ArchiveFile, write_all
from thawd.resources import Function
from thawd.system.folders import sync

DOCUMENT = "packages.json"
_UNFINISHED = ".new-"
_LOCK = ".lock"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """The packages to make: functions, folders and options.

    Attributes:
        output: folder for the archives; None: only the plan is made.
        architecture: ``x86_64`` or ``arm64``.
        python: Python version for all functions; None: each function's own.
        form: ``auto``, or the form for all functions.
        parts_url: where the parts of split packages will be, such as ``s3://bucket/prefix``; empty: the function's
            environment variable PACKAGE_PARTS_URL contains it.
        tries_imports: whether the handlers are imported from the finished archives.
        limits: Lambda's limits.
    """

    output: Path | None = None
    architecture: str = "x86_64"
    python: tuple[int, int] | None = None
    form: str = AUTO
    parts_url: str = ""
    tries_imports: bool = True
    limits: Limits = Limits()


class Packages(msgspec.Struct, frozen=True, kw_only=True):
    """The plan, and the archives that were written.

    Attributes:
        plan: the plan.
        prepared: the functions as they were planned, in the order of the plan.
        trials: the results of imports, by function.
        files: the archives, by the name of the function or layer, or by `writing.part_key`; empty without an output
            folder.
    """

    plan: Plan
    prepared: tuple[Prepared, ...]
    trials: Mapping[str, Trial]
    files: Mapping[str, ArchiveFile] = {}

    def document(self) -> dict[str, object]:
        """Return the contents of ``packages.json``. Two runs with the same contents give the same document."""
        return {
            "functions": [
                self._function(each, ready) for each, ready in zip(self.plan.functions, self.prepared, strict=True)
            ],
            "layers": msgspec.to_builtins(self.plan.layers),
            "files": msgspec.to_builtins(dict(self.files)),
        }

    def _function(self, each: FunctionPlan, ready: Prepared) -> dict[str, object]:
        return {
            **msgspec.to_builtins(each),
            "before_bytes": ready.before_bytes,
            "trial": msgspec.to_builtins(self.trials[each.function]),
            "code": msgspec.to_builtins(ready.contents.code),
            "distributions": msgspec.to_builtins(ready.contents.pieces),
            "removed": [
                {"rule": it.rule, "distribution": it.distribution, "files": it.files, "bytes": it.size_bytes}
                for it in ready.removed
            ],
            "notes": list(ready.notes),
        }


def make(settings: Settings, names: Sequence[str], order: Order, progress: Progress) -> Packages:
    """Plan and make the packages of functions. Blocks, for minutes if packages are downloaded.

    Args:
        settings: the configuration.
        names: names of functions of the configuration.
        order: the packages to make.
        progress: called with lines about steps that take long.

    Raises:
        PackageError: a package cannot be made; the output folder is as it was.
        OSError: a file cannot be written.
    """
    with _workplace(order.output, progress) as (scratch, lock):
        # The output folder may be in a code folder.
        not_code = {*settings.not_code(), *([] if order.output is None else [order.output.absolute()])}
        preparation = Preparation(scratch, lock, order.limits, not_code=not_code, progress=progress)
        run = _Run(order, preparation, scratch, config_folder=settings.path.parent, progress=progress)
        made = run.make([settings.functions[name] for name in names])
        if order.output is not None:
            _install(made, run.written, order.output)
        return made


class _Run:
    """One run.

    Attributes:
        written: folder with the archives that were written last.
    """

    def __init__(
        self, order: Order, preparation: Preparation, scratch: Path, *, config_folder: Path, progress: Progress
    ) -> None:
        self._order = order
        self._config_folder = config_folder
        self._preparation = preparation
        self._scratch = scratch
        self._progress = progress
        self.written = scratch

    def make(self, functions: Sequence[Function]) -> Packages:
        """Make the packages of functions. If an import needs a file that a rule removed, the rule is not applied."""
        made = self._attempt(functions, {})
        failed = [each for each in functions if made.trials[each.name].state == FAILED]
        if not failed:
            return made
        needed = {each.name: self._needed_rules(each) for each in failed}
        if broken := [name for name, rules in needed.items() if rules is None]:
            raise _broken(made.trials, broken)
        without = {name: rules for name, rules in needed.items() if rules is not None}
        made = self._attempt(functions, without)
        if broken := [name for name in without if made.trials[name].state == FAILED]:
            raise _broken(made.trials, broken)
        return made

    def _needed_rules(self, function: Function) -> frozenset[str] | None:
        """Return the rules that remove files which the import needs; None: the import fails even with all files."""
        name = function.name
        self._progress(f"the handler of {name} cannot be imported; trying with all files")
        everything = frozenset(RULES)
        if self._attempt([function], {name: everything}).trials[name].state == FAILED:
            return None
        for rule in RULES:
            if self._attempt([function], {name: frozenset({rule})}).trials[name].state != FAILED:
                return frozenset({rule})
        return everything

    def _attempt(self, functions: Sequence[Function], without: Mapping[str, frozenset[str]]) -> Packages:
        targets = {each.name: self._target(each) for each in functions}
        prepared = tuple(
            self._preparation.prepare(each, targets[each.name], without=without.get(each.name, frozenset()))
            for each in functions
        )
        order = self._order
        planned = plan([ready.contents for ready in prepared], order.form, order.limits)
        trials = {each.name: Trial(state=NOT_TRIED, detail="nothing was written") for each in functions}
        if order.output is None:
            return Packages(plan=planned, prepared=prepared, trials=trials)
        self.written = Path(tempfile.mkdtemp(dir=self._scratch, prefix="archives-"))
        self._progress("writing the archives")
        files = write_all(planned, prepared, self.written, parts_url=order.parts_url, limits=order.limits)
        for each, ready in zip(planned.functions, prepared, strict=True):
            trials[each.function] = self._trial(each, ready, files)
        return Packages(plan=planned, prepared=prepared, trials=trials, files=files)

    def _target(self, function: Function) -> Target:
        order = self._order
        return target_of(function, architecture=order.architecture, python=order.python, folder=self._config_folder)

    def _trial(self, each: FunctionPlan, ready: Prepared, files: Mapping[str, ArchiveFile]) -> Trial:
        if not self._order.tries_imports:
            return Trial(state=NOT_TRIED, detail="as asked")
        if each.form == "image":
            return Trial(state=NOT_TRIED, detail="no archive was written")
        self._progress(f"importing {ready.function.handler} of {each.function} from its package")
        archives = [self.written / files[name].file for name in (each.function, *each.layers)]
        with tempfile.TemporaryDirectory(dir=self._scratch, prefix="trial-") as place:
            return try_import(ready.function, each, ready.target, archives, scratch=Path(place))


def _broken(trials: Mapping[str, Trial], names: Sequence[str]) -> PackageError:
    said = [
        f"functions.{name}: its handler cannot be imported from the package:\n{trials[name].detail}" for name in names
    ]
    way_out = "Add what is missing to the requirements, or to the function's environment; --untried makes it anyway"
    return PackageError("\n".join([*said, way_out]))


@contextmanager
def _workplace(output: Path | None, progress: Progress) -> Iterator[tuple[Path, int]]:
    """Yield a folder for files that are being made, and the descriptor of the lock that protects it."""
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        root = (
            output.absolute()
            if output is not None
            else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="thawd-package-")))
        )
        lock = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        stack.callback(os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another process that makes packages in {root}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        for left in root.glob(f"{_UNFINISHED}*"):  # left by processes that were killed
            shutil.rmtree(left, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=root))
        try:
            yield scratch, lock
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _install(made: Packages, written: Path, output: Path) -> None:
    """Move finished archives into the output folder, and write ``packages.json``."""
    before = _previous(output)
    functions = {each.function for each in made.plan.functions}
    for name in sorted(made.files, key=lambda name: name in functions):  # the functions' zip files last
        (written / made.files[name].file).replace(output / made.files[name].file)
    content = msgspec.json.format(msgspec.json.encode(made.document()), indent=2)
    (written / DOCUMENT).write_bytes(content + b"\n")
    sync(written / DOCUMENT)
    (written / DOCUMENT).replace(output / DOCUMENT)
    sync(output)
    if before is None or not before.functions <= functions:
        return  # the last run also made other functions, which may need its layers
    for name in before.files - {file.file for file in made.files.values()}:
        (output / name).unlink(missing_ok=True)


class _Previous(msgspec.Struct, frozen=True):
    functions: set[str]
    files: set[str]


def _previous(output: Path) -> _Previous | None:
    """Return the functions of the last run, and the names of its layers and parts."""
    try:
        document = msgspec.json.decode((output / DOCUMENT).read_bytes())
        functions = {str(each["function"]) for each in document["functions"]}
        files = {str(it["file"]) for name, it in document["files"].items() if name not in functions}
    except (OSError, msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return None
    return _Previous(functions, {name for name in files if OF_A_DIGEST.fullmatch(name)})
