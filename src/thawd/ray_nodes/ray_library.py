"""Imports Ray, which is an optional package, and connects to a cluster of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from thawd import __version__
from thawd.errors import ThawdError
from thawd.ray_nodes.options import NAMESPACE

_HEAD = "node:__internal_head__"
"""Resource that only Ray's head node has. Source: Ray's documentation, "Scheduling", "Resources"."""


class RayError(ThawdError):
    """Ray cannot be used; the message says what to do."""


def import_ray() -> Any:
    """Return the module ``ray``.

    Raises:
        RayError: Ray is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # thawd sends no telemetry, and starts nothing that does
    try:
        import ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise RayError("Ray is not installed here; install it with `pip install 'thawd[ray]'`") from None
    return ray


@contextlib.contextmanager
def connected(address: str, *, package: Path | None = None) -> Iterator[Any]:
    """Connect to a cluster of Ray; inside the ``with`` block, returns the module ``ray``.

    Args:
        address: ``auto``, ``HOST:PORT`` or ``ray://HOST:PORT``.
        package: zip file with what actors find in their working folder.

    Raises:
        RayError: Ray is not installed, or the cluster cannot be reached.
    """
    ray = import_ray()
    environment = None if package is None else {"working_dir": str(package)}
    try:
        ray.init(
            address=address,
            namespace=NAMESPACE,
            runtime_env=environment,
            log_to_driver=False,
            configure_logging=False,
        )
    except (OSError, RuntimeError, ValueError, TimeoutError, ImportError, ray.exceptions.RayError) as error:
        raise RayError(f"the Ray cluster {address} cannot be reached ({_first_line(error)}); {_WAY_OUT}") from None
    try:
        yield ray
    except ray.exceptions.RayError as error:
        raise RayError(f"the Ray cluster {address} does not do its work: {_first_line(error)}") from None
    finally:
        ray.shutdown()


_WAY_OUT = (
    "start one with `ray start --head` and name it with --address or RAY_ADDRESS. If it asks for a token, set "
    "RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def living_nodes() -> frozenset[str]:
    """Return the ids of the nodes that are alive."""
    return frozenset(node["NodeID"] for node in import_ray().nodes() if node["Alive"])


def is_head(node: dict[str, Any]) -> bool:
    """Whether a node, as ``ray.nodes()`` describes it, is the head node."""
    return _HEAD in node["Resources"]


def facts() -> dict[str, str]:
    """Return what must be known about a node before agents are started: a task of Ray."""
    return {"version": __version__, "auth": os.environ.get("RAY_AUTH_MODE", "").lower()}
