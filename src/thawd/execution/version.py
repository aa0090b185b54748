"""One published state of a function: everything that is needed to start its environments, fixed at publication."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from thawd import __file__ as package_file
from thawd.resources import LATEST, MEMORY_MB_PER_VCPU, REGION, Function

_BOOTSTRAP = str(Path(package_file).parent / "runtime" / "bootstrap.py")
# What functions see of the platform's own environment variables; secrets of the server's shell stay outside.
_PASSED_ON = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH")


@dataclass(frozen=True, slots=True)
class Version:
    """A function, the code and the interpreter it was published with.

    Attributes:
        function: as declared.
        generation: counts publications of this function since the server started, from 1.
        python: the interpreter that runs it.
        python_version: for example ``3.11.7``.
        task_root: folder of the code, not changed after publication.
        variables: environment variables common to all its processes.
    """

    function: Function
    generation: int
    python: Path
    python_version: str
    task_root: Path
    variables: Mapping[str, str]

    @property
    def qualifier(self) -> str:
        """The name by which callers see it."""
        return LATEST

    def argv(self, mode: str, descriptors: tuple[int, int, int]) -> list[str]:
        """Command line of a process of this version: mode, then control, services and lifeline descriptor."""
        return [str(self.python), _BOOTSTRAP, mode, *map(str, descriptors)]


def variables_of(
    function: Function,
    *,
    task_root: Path,
    python_version: str,
    buckets: Mapping[str, Path],
    own: Mapping[str, str],
) -> dict[str, str]:
    """Environment variables of a function's processes, but for what differs from environment to environment.

    Args:
        function: as declared; its own variables win, the reserved ones excepted.
        task_root: folder of the code.
        python_version: of the function's interpreter.
        buckets: folder of each bucket, for ``thawd.bucket``.
        own: the platform's own environment variables.

    Source: AWS Lambda developer guide, "Defined runtime environment variables".
    """
    vcpus = max(1, min(os.cpu_count() or 1, function.memory_mb // MEMORY_MB_PER_VCPU))
    defaults = {
        "LANG": "en_US.UTF-8",
        "TZ": ":UTC",
        # Several environments share the cores, and a pool of threads cannot be forked: as many threads as CPU share.
        "OMP_NUM_THREADS": str(vcpus),
        # Its telemetry opens files and starts a thread, and thawd promises that nothing leaves the machine.
        "ORT_DISABLE_TELEMETRY": "1",
        "PYTHONFAULTHANDLER": "1",
    }
    reserved = {
        "_HANDLER": function.handler,
        "AWS_EXECUTION_ENV": f"AWS_Lambda_python{'.'.join(python_version.split('.')[:2])}",
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_LAMBDA_FUNCTION_NAME": function.name,
        "AWS_LAMBDA_FUNCTION_VERSION": LATEST,
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(function.memory_mb),
        "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{function.name}",
        "LAMBDA_TASK_ROOT": str(task_root),
        "LAMBDA_RUNTIME_DIR": str(Path(_BOOTSTRAP).parent),
        "THAWD_BUCKETS": msgspec.json.encode({name: str(path) for name, path in buckets.items()}).decode(),
    }
    passed_on = {name: own[name] for name in _PASSED_ON if name in own}
    return defaults | passed_on | function.environment | reserved


def variables_of_environment(*, log_stream: str, provisioned: bool, identifier: str) -> dict[str, str]:
    """Environment variables that differ from environment to environment."""
    kind = "provisioned-concurrency" if provisioned else "on-demand"
    return {
        "AWS_LAMBDA_LOG_STREAM_NAME": log_stream,
        "AWS_LAMBDA_INITIALIZATION_TYPE": kind,
        "THAWD_ENVIRONMENT": identifier,
    }
