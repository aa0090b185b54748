"""What the commands `thawd cluster ray ...` do: they start, ask and end the supervisor."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from thawd import __version__
from thawd.ray_nodes import shipping
from thawd.ray_nodes.options import NAMESPACE, SUPERVISOR, Options
from thawd.ray_nodes.ray_library import RayError, connected, facts, is_head
from thawd.ray_nodes.supervisor import Status, Supervisor

_ANSWER_S = 120.0
_LOOK_S = 0.5
_LOOPBACK = ("127.", "::1")


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """How thawd is started on Ray.

    Attributes:
        address: address of the cluster of Ray; see `ray_library.connected`.
        project: folder of the project here, which is sent to the nodes unless `options.folder` names one there.
        options: see `Options`.
        needs_token: whether a cluster of Ray without tokens is refused.
        join: address of a machine outside of Ray, and a token; None: there is none.
        patience_s: how long to wait until all machines serve, seconds.
    """

    address: str
    project: Path
    options: Options
    needs_token: bool = True
    join: tuple[str, str] | None = None
    patience_s: float = 120.0

    def __repr__(self) -> str:
        return f"Launch(address={self.address!r})"  # the token is not for logs


def up(launch: Launch, *, say: Callable[[Status], None]) -> Status:
    """Start a supervisor, or replace the one that runs; return when all machines serve, or `patience_s` has passed.

    Args:
        launch: what to do.
        say: called with what the supervisor knows, whenever it has changed.

    Raises:
        RayError: Ray is not installed, cannot be reached, or asks for no token.
        PackageError: the project cannot be sent.
        OSError: a file of the project cannot be read.
    """
    with _package(launch) as package, connected(launch.address, package=package) as ray:
        require_usable(ray, needs_token=launch.needs_token)
        options = launch.options
        if package is not None:
            options = msgspec.structs.replace(options, package=hashlib.sha256(package.read_bytes()).hexdigest())
        handle = _replaced(ray, options)
        if launch.join is not None:
            ray.get(handle.join.remote(*launch.join), timeout=_ANSWER_S)
        return _until(ray, handle, all_serve, say=say, patience_s=launch.patience_s)


def status(address: str) -> Status | None:
    """Return what the supervisor knows; None: there is none.

    Raises:
        RayError: Ray is not installed, or cannot be reached.
    """
    with connected(address) as ray:
        handle = _supervisor(ray)
        return None if handle is None else _asked(ray, handle)


def down(address: str, *, say: Callable[[Status], None], patience_s: float) -> Status | None:
    """Stop thawd on all nodes, then remove the supervisor.

    Returns:
        None: nothing is left. Otherwise what the supervisor knew after `patience_s`; it continues to stop machines.

    Raises:
        RayError: Ray is not installed, or cannot be reached.
    """
    with connected(address) as ray:
        handle = _supervisor(ray)
        if handle is None:
            return None
        ray.get(handle.end.remote(), timeout=_ANSWER_S)
        last = _until(ray, handle, lambda status: not _with_agents(status), say=say, patience_s=patience_s)
        if _with_agents(last):
            return last
        ray.kill(handle, no_restart=True)
        return None


@contextlib.contextmanager
def _package(launch: Launch) -> Iterator[Path | None]:
    if launch.options.folder:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="thawd-ray-") as folder:
        package = Path(folder) / "project.zip"
        shipping.pack(launch.project, package)
        yield package


def require_usable(ray: Any, *, needs_token: bool) -> None:
    """Refuse a cluster of Ray in which thawd cannot run, or that lets in everybody.

    Raises:
        RayError: it is one.
    """
    found = ray.get(ray.remote(facts).options(num_cpus=0).remote(), timeout=_ANSWER_S)
    if found["version"] != __version__:
        raise RayError(
            f"Ray's nodes have thawd {found['version']}, and this is {__version__}; install the same version on all"
        )
    addresses = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    if needs_token and found["auth"] != "token" and not all(each.startswith(_LOOPBACK) for each in addresses):
        raise RayError(
            "this Ray cluster asks nobody for a token, so everybody who reaches its ports, functions included, can run "
            "code on all nodes. Start Ray with RAY_AUTH_MODE=token and a token on all nodes, or pass --no-ray-token if "
            "nobody else can reach its ports"
        )


def _replaced(ray: Any, options: Options) -> Any:
    """The supervisor with these options: the one that runs, or a new one in its place."""
    old = _supervisor(ray)
    if old is not None:
        found = _asked(ray, old)
        if (found.version, found.options) == (__version__, options) and not found.is_ending:
            return old
        ray.kill(old, no_restart=True)
        _until_gone(ray)
        if found.options.scales and not options.scales:
            from ray.autoscaler.sdk import request_resources

            request_resources(bundles=[])  # Ray remembers what the old one has asked for
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # On the head node if possible, because an actor keeps its node from being removed.
    head = next((node["NodeID"] for node in ray.nodes() if node["Alive"] and is_head(node)), None)
    return (
        ray.remote(Supervisor)
        .options(
            name=SUPERVISOR,
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=4,
            scheduling_strategy=None if head is None else NodeAffinitySchedulingStrategy(head, soft=True),
        )
        .remote(msgspec.json.encode(options))
    )


def _supervisor(ray: Any) -> Any:
    """The supervisor that runs; None: there is none."""
    try:
        return ray.get_actor(SUPERVISOR, namespace=NAMESPACE)
    except ValueError:
        return None


def _until_gone(ray: Any) -> None:
    until_s = time.monotonic() + _ANSWER_S
    while _supervisor(ray) is not None:
        if time.monotonic() > until_s:
            raise RayError("the supervisor that runs could not be removed; try again")
        time.sleep(_LOOK_S)


def _asked(ray: Any, handle: Any) -> Status:
    return msgspec.json.decode(ray.get(handle.status.remote(), timeout=_ANSWER_S), type=Status)


def _until(
    ray: Any, handle: Any, done: Callable[[Status], bool], *, say: Callable[[Status], None], patience_s: float
) -> Status:
    until_s, last = time.monotonic() + patience_s, None
    while True:
        found = _asked(ray, handle)
        if found != last:
            say(found)
        last = found
        if done(found) or time.monotonic() > until_s:
            return found
        time.sleep(_LOOK_S)


def _with_agents(status: Status) -> bool:
    return any(node.has_agent for node in status.nodes) or not status.is_ending


def serving(status: Status) -> int:
    """Return how many machines serve."""
    return sum(node.report is not None and node.report.state == "serving" for node in status.nodes)


def all_serve(status: Status) -> bool:
    """Return whether as many machines serve as there should be, all with the newest options."""
    generation = status.options.generation
    new = [each for each in status.nodes if each.report is not None and each.report.generation == generation]
    wanted = len(status.nodes) if status.wanted is None else min(status.wanted, len(status.nodes))
    return len(new) >= wanted > 0 and all(each.report is not None and each.report.state == "serving" for each in new)
