"""Tries packages: unpacks the archives as Lambda does, and imports the handler in a bare process.

The process sees the standard library, the package, and nothing that is installed on this machine, apart from the
modules that Lambda's Python runtimes have (boto3 and what it needs). Importing runs the code at the top level of the
handler's module, as publishing the function does.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sysconfig
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from thawd.deploy.packages.planning import FunctionPlan
from thawd.deploy.packages.targets import Target
from thawd.errors import EnvironmentBuildError
from thawd.publishing.interpreters import find_interpreter
from thawd.resources import Function

_TAIL_LINES = 12
_OF_LAMBDA = ("boto3", "botocore", "s3transfer", "jmespath", "dateutil", "urllib3", "six", "snapshot_restore_py")
"""Modules of Lambda's Python runtimes. Source: developer guide, "Runtime dependencies in Python"."""
_OF_THAWD = "thawd"
_PROGRAM = """
import importlib, importlib.machinery, json, os, site, sys
asked = json.loads(sys.argv[1])
try:
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: end with the process that started this one
except (ImportError, OSError, AttributeError):
    pass
if os.getppid() != asked["parent"]:
    sys.exit(1)
before = list(sys.path)
for folder in asked["path"]:
    site.addsitedir(folder)
sys.path[:] = [entry for entry in sys.path if entry not in before] + before
class OfTheRuntime:
    def find_spec(self, name, path=None, target=None):
        if path is None and name in asked["modules"]:
            return importlib.machinery.PathFinder.find_spec(name, [asked["modules"][name]])
sys.meta_path.append(OfTheRuntime())
module, _, name = asked["handler"].rpartition(".")
try:
    getattr(importlib.import_module(module.replace("/", ".")), name)
except ModuleNotFoundError as error:
    open(asked["answer"], "w").write(json.dumps({"missing": error.name}))
    raise
open(asked["answer"], "w").write(json.dumps({"thawd": "thawd" in sys.modules}))
"""

WORKS, NOT_TRIED, FAILED = "works", "not tried", "failed"


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an import.

    Attributes:
        state: ``works``, ``not tried`` or ``failed``.
        detail: why it was not tried, the error, or what to know; may be empty.
    """

    state: str
    detail: str = ""


def try_import(
    function: Function, plan: FunctionPlan, target: Target, archives: Sequence[Path], *, scratch: Path
) -> Trial:
    """Import a function's handler from its archives. Blocks, for at most `Function.init_timeout_s`.

    Args:
        function: the function.
        plan: how it is packaged.
        target: what it is packaged for.
        archives: its zip file, then those of its layers. The part of a split package is beside the zip file.
        scratch: an empty folder; left with the unpacked files.
    """
    if target.python is None:
        return Trial(state=NOT_TRIED, detail="the handler is not Python")
    if not target.is_of_this_machine():
        return Trial(state=NOT_TRIED, detail=f"programs for {target.architecture} do not run on this machine")
    try:
        interpreter = find_interpreter(f"{target.python[0]}.{target.python[1]}")
    except EnvironmentBuildError:
        version = f"{target.python[0]}.{target.python[1]}"
        return Trial(state=NOT_TRIED, detail=f"this machine has no Python {version}, such as python{version} on PATH")
    task, opt, tmp = scratch / "task", scratch / "opt", scratch / "tmp"
    for folder in (task, opt, tmp):
        folder.mkdir(mode=0o700)
    for place, archive in zip((task, *[opt] * (len(archives) - 1)), archives, strict=True):
        unpack(archive, place)
    answer = scratch / "answer"
    asked = {
        "path": [str(task), str(opt / "python" / "lib" / target.runtime / "site-packages"), str(opt / "python")],
        "modules": _modules_here(),
        "handler": plan.handler,
        "answer": str(answer),
        "parent": os.getpid(),
    }
    command = [str(interpreter.path), "-I", "-S", "-B", "-c", _PROGRAM, json.dumps(asked)]
    environ = _environ(function, task, tmp, parts=archives[0].parent)
    status, output = _run(command, task, environ, function.init_timeout_s)
    return _judged(status, output, answer)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a zip file that `archives` wrote, with links and permissions, over the files in `folder`.

    Raises:
        OSError: a file cannot be written.
    """
    with zipfile.ZipFile(archive) as file:
        for info in file.infolist():
            mode, path = info.external_attr >> 16, folder / info.filename
            if stat.S_ISDIR(mode):
                path.mkdir(parents=True, exist_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if stat.S_ISLNK(mode):
                path.symlink_to(os.fsdecode(file.read(info)))
                continue
            with file.open(info) as source, path.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            path.chmod(mode & 0o777)


def _modules_here() -> dict[str, str]:
    """Return the folders of modules that the runtime has besides the package, by name."""
    installed = sysconfig.get_path("purelib")
    return {**dict.fromkeys(_OF_LAMBDA, installed), _OF_THAWD: str(Path(__file__).parents[3])}


def _environ(function: Function, task: Path, tmp: Path, *, parts: Path) -> dict[str, str]:
    own = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TZ") if name in os.environ}
    lambdas = {
        "AWS_LAMBDA_FUNCTION_NAME": function.name,
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "HOME": str(tmp),
        "LAMBDA_TASK_ROOT": str(task),
        "TMPDIR": str(tmp),
    }
    return {**own, **lambdas, **function.environment, "PACKAGE_PARTS_URL": parts.absolute().as_uri()}


def _run(command: Sequence[str], folder: Path, environ: Mapping[str, str], timeout_s: float) -> tuple[int | None, str]:
    """Return the status of a program and what it printed; None: it was killed because it took too long."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env=environ,
        start_new_session=True,  # so that processes that it leaves behind end with it
    )
    status: int | None = None
    output = b""
    try:
        output, _ = process.communicate(timeout=timeout_s)
        status = process.returncode
    except subprocess.TimeoutExpired:
        pass
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    return status, output.decode(errors="replace")


def _judged(status: int | None, output: str, answer: Path) -> Trial:
    if status is None:
        return Trial(state=FAILED, detail="its import takes longer than init_timeout_s")
    try:
        said = msgspec.json.decode(answer.read_bytes(), type=dict[str, object])
    except (OSError, msgspec.DecodeError):
        said = {}
    if _OF_THAWD in said:  # the import came to its end; a status of 0 alone can be that of sys.exit()
        detail = "it imports thawd, which is not in the package; `thawd deploy aws` adds thawd.bucket and thawd.table"
        return Trial(state=WORKS, detail=detail if said[_OF_THAWD] else "")
    missing = str(said.get("missing") or "")
    if missing.partition(".")[0] in _OF_LAMBDA:
        detail = (
            f"it needs {missing}, which Lambda's runtime has, but this machine has not; install boto3 to try it here"
        )
        return Trial(state=NOT_TRIED, detail=detail)
    lines = output.strip().splitlines()[-_TAIL_LINES:] or [f"status {status}"]
    return Trial(state=FAILED, detail="\n".join(lines))
