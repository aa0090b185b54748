"""Keeps one thawd running on a node, in one thread that lives as long as the agent."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from thawd import config
from thawd.cluster.credentials import CredentialsError
from thawd.config import Settings
from thawd.errors import ConfigurationError, ThawdError
from thawd.ray_nodes import admission, data_folders, local_server, server_process
from thawd.ray_nodes.options import AgentReport, Options
from thawd.ray_nodes.server_process import ServerProcess
from thawd.server.port_and_folder_locks import is_locked
from thawd.system.retry import Backoff

TICK_S = 0.5
_FIRST_S = 1.0
_LONGEST_S = 60.0
_STEADY_S = 60.0
_ASK_S = 5.0
# A function runs for 15 minutes at most.
_DRAIN_S = 960.0
_KILL_S = 30.0


@dataclass(frozen=True)
class Place:
    """Where a keeper works.

    Attributes:
        node: id of the node.
        address: host name or IP address of the node.
        folder: folder of the project.
        alive: returns the ids of the nodes of Ray that are alive.
    """

    node: str
    address: str
    folder: Path
    alive: Callable[[], frozenset[str]]


class Keeper:
    """Starts thawd, watches it, starts it again after it has ended, and stops it.

    Args:
        options: see `Options`.
        place: where it works.
    """

    def __init__(self, options: Options, place: Place) -> None:
        self._options = options
        self._place = place
        self._report = AgentReport(state="starting", generation=options.generation)
        self._stop, self._drains = threading.Event(), False
        self._wake = threading.Event()
        self._admission: tuple[str, str] | None = None
        self._settings: Settings | None = None
        self._thread = threading.Thread(target=self._run, name="thawd keeper", daemon=True)
        self._thread.start()

    @property
    def report(self) -> AgentReport:
        """What it does now."""
        return self._report

    def admit(self, address: str = "", token: str = "") -> None:
        """Let the machine join the cluster with a token; without one, make the cluster. Returns immediately."""
        self._admission = (address, token)
        self._wake.set()

    def invite(self) -> tuple[str, str]:
        """Return the address of this machine for others, and a token with which another machine may join.

        Raises:
            ThawdError: it cannot let others join at the moment.
            OSError: its thawd does not answer.
        """
        settings = self._settings
        if settings is None:
            raise CredentialsError("this machine is not a member of the cluster yet")
        token = admission.token_of(settings.server.data)
        _, body = local_server.ask(settings, "/_thawd/machines", timeout_s=_ASK_S)
        document = msgspec.json.decode(body)
        own = [each["address"] for each in document["machines"] if each["name"] == document["machine"]]
        return str(own[0]), token

    def view(self) -> bytes:
        """Return all machines of the cluster as the thawd here knows them: the document of ``/_thawd/machines``.

        Raises:
            OSError: it does not answer.
        """
        settings = self._settings
        if settings is None:
            raise ConnectionRefusedError("no thawd runs here")
        status, body = local_server.ask(settings, "/_thawd/machines", timeout_s=_ASK_S)
        if status != 200:
            raise ConnectionRefusedError(f"thawd answers with HTTP {status}")
        return body

    def stop(self, *, drain: bool) -> None:
        """Stop thawd for good. Returns immediately; `report` says when it has ended.

        Args:
            drain: whether other machines take over first, and everything that runs is finished.
        """
        self._drains = drain
        self._stop.set()
        self._wake.set()

    def _run(self) -> None:
        backoff = Backoff(first_s=_FIRST_S, longest_s=_LONGEST_S)
        while not self._stop.is_set():
            begun_s = time.monotonic()
            try:
                why = self._serve()
            except ConfigurationError as error:
                why = "; ".join(map(str, error.problems))
            except ThawdError as error:
                why = error.message
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
            self._admission = None
            if self._stop.is_set():
                break
            now_s = time.monotonic()
            if now_s - begun_s > _STEADY_S:
                backoff.succeeded()
            self._say("failing", why=why, url="", pid=0)
            self._stop.wait(backoff.failed(now_s))
        self._say("stopped", why="", url="", pid=0)

    def _say(self, state: str, **fields: object) -> None:
        self._report = msgspec.structs.replace(self._report, state=state, **fields)

    def _serve(self) -> str:
        """Run thawd until it ends; returns why it has ended.

        Raises:
            ThawdError: it cannot be started.
            OSError: it cannot be started.
            ValueError: the notes about data folders cannot be read.
        """
        options, place = self._options, self._place
        self._say("starting", why="")
        root = Path(options.data).expanduser()
        data = data_folders.take(root, place.node, place.alive())
        own = data_folders.beside(data)
        server_process.end_left_over(data, own)
        while is_locked(data):
            self._say("starting", why=f"a thawd that still stops uses {data}")
            if self._stop.wait(TICK_S):
                return ""
        folder = data_folders.own_copy(place.folder, options.package, data) if options.package else place.folder
        path = folder / options.config
        environ = self._environ(data, path)
        settings = config.load(path, environ=environ)
        if settings.cluster is None or settings.server.state is None:
            raise CredentialsError(f"{path} has no [cluster], or no `state` in [server]")
        if not self._admitted(settings):
            return ""
        self._say("starting", why="", machine=admission.own_name(settings))
        server = ServerProcess(path, own, environ)
        try:
            self._settings = settings
            self._watch(server, settings)
            if self._stop.is_set():
                self._end(server, settings)
            return server.last_words() or "thawd has ended"
        finally:
            self._settings = None
            if not server.ended():
                server.kill()

    def _environ(self, data: Path, path: Path) -> dict[str, str]:
        """The environment of thawd. The port for other machines is that of the configuration, a file at `path`."""
        place, initial = self._place, server_process.initial_variables()
        host = f"[{place.address}]" if ":" in place.address else place.address
        environ = server_process.environment(initial, folder=place.folder, data=data, address=f"{host}:0")
        if own := initial.get("THAWD_CLUSTER_ADDRESS"):
            return {**environ, "THAWD_CLUSTER_ADDRESS": own}
        without = {name: text for name, text in environ.items() if name != "THAWD_CLUSTER_ADDRESS"}
        try:
            cluster = config.load(path, environ=without).cluster
        except ConfigurationError:
            return environ  # the caller finds the same mistakes
        port = 0 if cluster is None else cluster.address[1]
        return {**environ, "THAWD_CLUSTER_ADDRESS": f"{host}:{port}"}

    def _admitted(self, settings: Settings) -> bool:
        """Wait until this machine has credentials; returns whether it has."""
        while admission.need_credentials(settings):
            self._say("waiting", why="it waits for credentials of the cluster", can_invite=False)
            self._wake.wait()
            self._wake.clear()
            if self._stop.is_set():
                return False
            given, self._admission = self._admission, None
            if given is None:
                continue
            if given[1]:
                admission.join(settings, *given)
            else:
                admission.make_cluster(settings)
        return True

    def _watch(self, server: ServerProcess, settings: Settings) -> None:
        """Watch thawd until it has ended, or is to be stopped."""
        assert settings.cluster is not None
        has_key = bool(settings.cluster.key)
        while not self._stop.is_set() and not server.ended():
            state, why = "starting", server.last_words() if not server.url else ""
            if url := server.url:
                with contextlib.suppress(OSError, ValueError):
                    status, body = local_server.ask(settings, "/_thawd/ready", timeout_s=_ASK_S)
                    said = str(msgspec.json.decode(body).get("status", ""))
                    state, why = ("serving", "") if status == 200 else ("starting", said)
            self._say(state, why=why, url=url, pid=server.pid, can_invite=state == "serving" and not has_key)
            self._stop.wait(TICK_S)

    def _end(self, server: ServerProcess, settings: Settings) -> None:
        """Stop thawd: other machines take over, what runs is finished."""
        self._say("stopping", why="it finishes what it runs")
        if self._drains and not server.ended():
            with contextlib.suppress(OSError):  # it may be the last machine, and then nobody takes over
                local_server.ask(settings, "/_thawd/cluster/drain", b"", timeout_s=_DRAIN_S)
        server.terminate()
        grace_s = settings.server.grace_s + _KILL_S
        if not server.wait(grace_s):
            server.kill()
