"""Executes the programs of environments and templates, and follows their processes until they end.

There are three programs: thawd's runtime in the function's interpreter; thawd-thaw, which becomes a process that was
frozen; and the function's own program, which speaks the Runtime API. `thaw_fork_cold` chooses between them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from thawd.environments.channels import Channels
from thawd.environments.child_processes import Child, Children
from thawd.environments.init_phase import InitError, error_document
from thawd.environments.platform_log import platform_log
from thawd.environments.sandbox.capabilities import Rights
from thawd.environments.starts.program_execution import execute_program, file_actions, spawn
from thawd.environments.version import Version, variables_of_environment
from thawd.errors import StoreError
from thawd.resources import Function
from thawd.snapshot.disk.places import Places, in_tmp
from thawd.snapshot.disk.root_mounts import OUTBOX, RootMounts
from thawd.snapshot.disk.temporary_folders import DiskRefusedError, Disks, DiskSnapshot, PreparedFolder
from thawd.telemetry.logs.groups import path_of_group
from thawd.telemetry.logs.writer import FunctionLog, LogStream

# Time from killing strays (processes that functions left behind) until the next search, which reaps the killed ones and
# finds processes that they had started.
_SWEEP_AGAIN_S = 1.0
_LAST_SWEEPS = 50
# Time from one search for dead processes that functions left behind to the next, while a function's process is alive.
_REAP_S = 5.0
# How long after a process has ended to remove the processes and files that it left behind. Waiting has two uses: one
# search can serve several processes that have ended, and a new process for which a request waits can start first.
_TIDY_S = 0.05
_LAST_SWEEP_S = 0.01


@dataclass(slots=True)
class Start:
    """The properties of a process that is to be started.

    Attributes:
        identifier: identifies its environment or template, 32 hexadecimal digits.
        stream: the log stream for its output.
        channels: the channels between the platform and the process.
        initialization: ``AWS_LAMBDA_INITIALIZATION_TYPE``.
        keys: the environment variables with the function's AWS credentials of this run of the server; empty: the
            function has none, or `Version.variables` has them.
        folder: its temporary folder; None if the function sets TMPDIR, or all processes share the machine's folder.
        tmpdir: the variable ``TMPDIR``; None: it is not set, because the process sees its own folder at ``/tmp``, or
            because the function sets the variable itself.
        rights: options of thawd-thaw that say whether the process is an environment and which capabilities it drops.
    """

    identifier: str
    stream: LogStream
    channels: Channels
    initialization: str
    keys: Mapping[str, str] = field(default_factory=dict)
    folder: PreparedFolder | None = None
    tmpdir: str | None = None
    rights: tuple[str, ...] = ()

    @property
    def in_root(self) -> bool:
        """Whether the process has a root of its own."""
        return self.folder is not None and self.folder.root is not None

    @property
    def options(self) -> list[str]:
        """Options of thawd-thaw for rights and mounts. On its command line they stand before the image or ``--run``."""
        return [*self.rights, *([] if self.folder is None else self.folder.options)]

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that differ between processes of one version."""
        variables = variables_of_environment(
            log_stream=self.stream.name, initialization=self.initialization, identifier=self.identifier
        )
        variables |= self.keys
        return variables if self.tmpdir is None else {**variables, "TMPDIR": self.tmpdir}


class Launcher:
    """Starts processes of any version on this machine.

    Attributes:
        children: the live processes of functions.
        disks: makes a temporary folder for each process; None: all share the machine's folder.
        program: thawd-thaw; None if it was not built.
        rights: options that drop capabilities of processes.
        on_lines: called with the name of a log group, and the lines that have just been written to its log.
        keys: returns the environment variables with a function's AWS credentials.
    """

    def __init__(
        self, *, log_folder: Path, log_max_bytes: int, disks: Disks | None = None, program: Path | None = None
    ) -> None:
        self.children = Children()
        self.disks = disks
        self.program = program
        self.rights = Rights()
        self.on_lines: Callable[[str, bytes], None] = lambda group, lines: None
        self.keys: Callable[[str], Mapping[str, str]] = lambda function: {}
        self._helpers = 0
        self._helpers_lock = threading.Lock()
        self._log_folder = log_folder
        self._log_max_bytes = log_max_bytes
        self._logs: dict[str, FunctionLog] = {}
        self._alive: set[str] = set()
        self._with_folder: set[str] = set()
        self._to_tidy: list[str] = []
        self._sweeping = False
        self._reaping = False

    @contextlib.contextmanager
    def spare_own_programs(self) -> Iterator[None]:
        """Within this context, do not kill processes without an owner, because they may be thawd's own, such as pip.

        It may be used in any thread.
        """
        with self._helpers_lock:
            self._helpers += 1
        try:
            yield
        finally:
            with self._helpers_lock:
                self._helpers -= 1

    def log(self, function: Function) -> FunctionLog:
        """Return the log of `function`; functions with the same log group share it."""
        group = function.log_group_name
        if group not in self._logs:
            path = path_of_group(self._log_folder, group)
            self._logs[group] = FunctionLog(
                path, max_bytes=self._log_max_bytes, on_stored=lambda lines: self.on_lines(group, lines)
            )
        return self._logs[group]

    def flush_logs(self) -> None:
        """Write the buffered lines of all logs to disk."""
        for log in self._logs.values():
            log.flush()

    def begin(
        self,
        version: Version,
        *,
        initialization: str,
        disk: DiskSnapshot | None = None,
        is_template: bool = False,
        outbox: Path | None = None,
    ) -> Start:
        """Create an identifier, a log stream, channels and a temporary folder for a new process of `version`.

        Args:
            version: the version that the process will run.
            initialization: ``AWS_LAMBDA_INITIALIZATION_TYPE``.
            disk: the first content of its temporary folder; None: the folder is empty.
            is_template: whether the process will be frozen or forked, and serve no invocations itself.
            outbox: folder to which a process with a root of its own writes its image; None: it writes none.

        Raises:
            OSError: no descriptors left, or no disk space.
            DiskRefusedError: this machine cannot provide `disk`.
            InitError: the function separates tenants, but its processes would share the machine's ``/tmp``.
        """
        if version.function.tenants and (why := self.why_shared(version)) is not None:
            text = f"the function separates tenants, but its environments would share the machine's /tmp: {why}"
            raise InitError(text, error_document("Runtime.TenantIsolation", text), by_function=True)
        identifier = os.urandom(16).hex()
        function = version.function
        # Lines need the function's name only if the function sets its log group: other functions can set the same one.
        owner = "" if function.log_group is None else function.name
        stream = LogStream(self.log(function), version=version.number, identifier=identifier, owner=owner)
        start = Start(identifier, stream, Channels.open(), initialization, self.keys(function.name))
        start.rights = self.rights.template if is_template else ("--environment", *self.rights.environment)
        if version.root is not None:
            return self._begin_in_root(version, version.root, start, disk=disk, outbox=outbox)
        if "TMPDIR" in version.function.environment:
            return start
        if self.disks is None:
            start.tmpdir = os.environ.get("TMPDIR")
        else:
            self._with_folder.add(identifier)
            try:
                confined = version.task_root if self.confines(version) else None
                start.folder = self.disks.prepare(disk, identifier, confined=confined, places=version.places)
                start.tmpdir = str(start.folder.path) if start.folder.tmp is None else None
            except StoreError as error:
                self.abandon(start)
                if isinstance(error, DiskRefusedError):
                    raise
                raise OSError(error.message) from error
        return start

    def _begin_in_root(
        self, version: Version, root: RootMounts, start: Start, *, disk: DiskSnapshot | None, outbox: Path | None
    ) -> Start:
        """Prepare the root of a container image's process.

        Raises:
            OSError: no disk space.
            DiskRefusedError: this machine cannot provide `disk`.
            InitError: the image's files are gone, or this server makes no temporary folders.
        """
        # Such a process never keeps capabilities: none of its forks needs them.
        start.rights = ("--environment", "--rights", "none") if outbox is None else ("--rights", "none")
        gone = not root.folder.is_dir()
        if gone or self.disks is None:
            self.abandon(start)
            text = (
                f"the files of the container image are gone from {root.folder}; update the function's code"
                if gone
                else "a container image needs thawd-thaw and a temporary folder, which this server does not have"
            )
            raise InitError(text, error_document("Runtime.InvalidRoot", text), by_function=True)
        if outbox is not None:
            root = replace(root, writable={**root.writable, OUTBOX: outbox})
        self._with_folder.add(start.identifier)
        try:
            start.folder = self.disks.prepare(disk, start.identifier, root=root)
        except StoreError as error:
            self.abandon(start)
            if isinstance(error, DiskRefusedError):
                raise
            raise OSError(error.message) from error
        return start

    def root_command(self, root: RootMounts) -> list[str]:
        """Return the beginning of a command line that executes a program in a root. Append the program's own."""
        return [str(self.program), "--rights", "none", *root.options, "--run"]

    def why_no_root(self, root: RootMounts) -> str | None:
        """Return why processes cannot have this root; None: they can. Blocks, because it tries."""
        return "this server makes no temporary folders" if self.disks is None else self.disks.make_places(root)

    def confines(self, version: Version) -> bool:
        """Return whether each process of `version` sees its own ``/tmp``, and its code as read-only."""
        return self.why_shared(version) is None

    def why_shared(self, version: Version) -> str | None:
        """Return why the processes of `version` share the machine's ``/tmp``; None: each process sees its own."""
        if self.disks is None:
            return "this server makes no temporary folders"
        if version.root is not None:
            return None
        if "TMPDIR" in version.function.environment:
            return "the function sets TMPDIR"
        if self.disks.shared_tmp is not None:
            return self.disks.shared_tmp
        return in_tmp([version.task_root, version.python])

    def why_real(self, function: Function, places: Places, needed: Sequence[Path]) -> str | None:
        """Return why the processes of a function must see its code and layers at their real paths.

        Args:
            function: as declared.
            places: what they would see at Lambda's paths.
            needed: files that they need besides.

        Returns:
            The reason; None: they can see Lambda's paths.
        """
        if self.disks is None:
            return "this server makes no temporary folders"
        if self.disks.real_paths is not None:
            return self.disks.real_paths
        if "TMPDIR" in function.environment:
            return "the function sets TMPDIR"
        return in_tmp([Path(places.code), *needed]) or self.disks.hides(places, needed)

    def confined(self, start: Start, argv: Sequence[str]) -> list[str]:
        """Return the command line of a program, executed by thawd-thaw if `start` has mounts or drops capabilities."""
        if not self.rights.drops and (start.folder is None or not start.folder.options):
            return list(argv)
        assert self.program is not None
        return [str(self.program), *start.options, "--run", *argv]

    def abandon(self, start: Start) -> None:
        """No process was started for `start`: release its channels and its temporary folder."""
        start.channels.close()
        self._remove_folders([start.identifier])

    def expect(self, start: Start) -> None:
        """Protect processes of `start` from `sweep` although no main process is watched yet: extensions start first."""
        self._alive.add(start.identifier)

    def forget(self, start: Start) -> None:
        """Undo `expect`, because the main process was not started: release what `start` still holds."""
        self._alive.discard(start.identifier)
        start.channels.close_process_ends()
        self._remove_folders([start.identifier])

    def execute(
        self, version: Version, mode: str, start: Start, *, variables: Mapping[str, str] | None = None
    ) -> Child:
        """Execute the runtime and follow the process. If that fails, abandon `start`.

        Args:
            version: the version that the process will run.
            mode: see `thawd.runtime.bootstrap`.
            start: what the new process gets.
            variables: all environment variables of a process that runs no init. None: the process runs the init of
                `version`, with the variables of `version` and `start`.

        Raises:
            OSError: the interpreter does not exist, or there is no memory or process left.
        """
        if variables is None:
            platform_log(version, start.stream).init_start(start.initialization)
            variables = {**version.variables, **start.variables}
        control, services, lifeline, output = start.channels.process_ends
        command = self.confined(start, version.argv(mode, (control, services, lifeline)))
        try:
            pid = spawn(
                command,
                variables,
                cwd=version.working_folder,
                output=output,
                pass_fds=(control, services, lifeline),
            )
        except OSError:
            self.abandon(start)
            raise
        start.channels.close_process_ends()
        # Watch the process immediately: until it is watched, `sweep` takes it for a stray and kills it.
        return self.watch(pid, start.identifier)

    def execute_program(self, version: Version, start: Start, *, api: str) -> Child:
        """Execute the version's own program and follow the process.

        Args:
            version: a version with a program.
            start: what the new process gets.
            api: address of its Runtime API, host and port.

        Raises:
            OSError: the program does not exist, or there is no memory or process left.
        """
        assert version.program is not None
        _, _, lifeline, output = start.channels.process_ends
        variables = {**version.variables, **start.variables, "AWS_LAMBDA_RUNTIME_API": api}
        command = self.confined(start, version.program.argv)
        pid = execute_program(command, variables, cwd=version.working_folder, lifeline=lifeline, output=output)
        start.channels.close_process_ends()
        return self.watch(pid, start.identifier)

    def thaw(self, version: Version, command: list[str], start: Start, *, image_fd: int = -1) -> Child:
        """Execute thawd-thaw and follow the process. If that fails, abandon `start`.

        Uses posix_spawn, because Popen takes a millisecond longer. Popen's features are not needed: all descriptors of
        this process are closed on exec, and the image contains the copy's working folder and signal handlers.

        Args:
            version: the version that the copy will run.
            command: program, image, and the arguments that the copy gets.
            start: what the new process gets.
            image_fd: a further descriptor that it gets, under the same number; -1: none.

        Raises:
            OSError: the program does not exist, or there is no memory or process left.
        """
        try:
            pid = os.posix_spawn(
                command[0],
                command,
                {**version.variables, **start.variables},
                file_actions=file_actions(start.channels.process_ends, kept=image_fd),
                setsid=True,
            )
        except OSError:
            self.abandon(start)
            raise
        start.channels.close_process_ends()
        return self.watch(pid, start.identifier)

    def watch(self, pid: int, identifier: str) -> Child:
        """Follow a process. Soon after it ends, processes that it left behind outside its process group are killed."""
        child = self.children.watch(pid)
        self._alive.add(identifier)
        if not self._reaping:
            self._reaping = True
            asyncio.get_running_loop().call_later(_REAP_S, self._reap)

        def forget(_: object) -> None:
            self._alive.discard(identifier)
            if not self._to_tidy:
                asyncio.get_running_loop().call_later(_TIDY_S, self._tidy)
            self._to_tidy.append(identifier)

        child.ended.add_done_callback(forget)
        return child

    def _tidy(self) -> None:
        """Remove what ended processes left behind."""
        ended, self._to_tidy = self._to_tidy, []
        if ended:
            self.sweep()
            self._remove_folders(ended)

    def _remove_folders(self, identifiers: list[str]) -> None:
        """Remove the temporary folders of ended processes. If the server stops first, the next server removes them."""
        disks = self.disks
        removed = self._with_folder.intersection(identifiers)
        self._with_folder -= removed
        if disks is not None and removed:
            asyncio.get_running_loop().run_in_executor(None, _remove_all, disks, removed)

    def _reap(self) -> None:
        self._reaping = bool(self._alive)
        self.children.reap()
        if self._reaping:
            asyncio.get_running_loop().call_later(_REAP_S, self._reap)

    def sweep(self) -> None:
        """Kill processes that functions left behind outside their process groups."""
        again = self.children.kill_strays(lambda identifier: identifier in self._alive, spare_unknown=self._helpers > 0)
        if again and not self._sweeping:
            self._sweeping = True
            asyncio.get_running_loop().call_later(_SWEEP_AGAIN_S, self._sweep_again)

    async def sweep_out(self) -> None:
        """When the server stops: sweep until no stray is left, at most `_LAST_SWEEPS` times.

        One sweep is not enough, because a stray's children are found only after the stray is dead.
        """
        self._tidy()
        for _ in range(_LAST_SWEEPS):
            spare = self._helpers > 0
            if not self.children.kill_strays(lambda identifier: False, spare_unknown=spare, patience_s=0):
                return
            await asyncio.sleep(_LAST_SWEEP_S)

    def _sweep_again(self) -> None:
        self._sweeping = False
        self.sweep()


def _remove_all(disks: Disks, identifiers: set[str]) -> None:
    for identifier in identifiers:
        disks.remove(identifier)
