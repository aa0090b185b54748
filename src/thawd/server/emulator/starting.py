"""Starts the emulator of other AWS services (moto's server in a separate process) and connects it to thawd.

The emulator is for development. Its state is kept in the data folder and is loaded before functions are published. The
emulator's own process saves the state (`thawd.server.emulator.state`).
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from thawd.control.names import parse_function
from thawd.environments.child_processes import Child, Children
from thawd.environments.version import GUARDED
from thawd.gateway.aws.bucket_notifications import BucketNotifications, EmulatedObjectEvent
from thawd.gateway.aws.proxy import AwsProxy
from thawd.gateway.role_keys import RoleKeys
from thawd.gateway.s3.xml import S3Error
from thawd.invocation import Invocation
from thawd.server.emulator.spawning import EmulatorProcess, missing_packages
from thawd.server.port_and_folder_locks import StartError
from thawd.sources.buckets import s3_event
from thawd.stores.tables.access import AwsAccess
from thawd.telemetry.console import complain

_START_S = 60.0
_STOP_S = 60.0


class Emulator:
    """A running emulator.

    Attributes:
        url: URL of the emulator, on loopback.
    """

    def __init__(self, process: subprocess.Popen[bytes], child: Child, url: str) -> None:
        self._process = process
        self._child = child
        self.url = url

    @classmethod
    async def start(
        cls,
        folder: Path,
        *,
        environ: Mapping[str, str],
        spawned: EmulatorProcess | None,
        children: Children,
        lost: Callable[[], None],
    ) -> Emulator:
        """Start the emulator and wait until it accepts requests.

        Args:
            folder: folder for the emulator's state.
            environ: environment variables of the platform.
            spawned: the emulator's process, if it was started before.
            children: watches the emulator's process, like those of functions.
            lost: called when the process has ended.

        Raises:
            StartError: moto is not installed, or the emulator did not start.
        """
        if missing := missing_packages():
            raise StartError(
                f"--aws needs {', '.join(missing)}, which is not installed; install it with: pip install 'thawd[aws]'"
            )
        spawned = spawned or EmulatorProcess(environ, for_stacks=False)
        process = spawned.popen
        assert process.stdout is not None
        process.returncode = 0  # so that Popen does not wait for the process; `Children` does that
        child = children.watch(process.pid)
        child.outlasts = True  # not killed with the functions' processes: `stop` makes it save its state and then exit
        try:
            spawned.use(folder)
            async with asyncio.timeout(_START_S):
                line = await asyncio.to_thread(process.stdout.readline)
        except (TimeoutError, BrokenPipeError):
            line = b""
        if not line.strip().isdigit():
            child.kill()
            raise StartError("the emulator of --aws did not start; see its own message above")
        child.ended.add_done_callback(lambda _: lost())
        return cls(process, child, f"http://127.0.0.1:{int(line)}")

    @property
    def access(self) -> AwsAccess:
        """Endpoint and keys for thawd's own clients; the emulator accepts any key."""
        return AwsAccess(endpoint_url=self.url, access_key="test", secret="test")

    def connect(self, url: str, keys: Mapping[str, str]) -> None:
        """Tell the emulator how it reaches thawd, so that its topics and rules can invoke thawd's functions.

        Args:
            url: URL of the server.
            keys: access keys with which requests must be signed; empty: any key is accepted.
        """
        access_key, secret = next(iter(keys.items()), ("test", "test"))
        assert self._process.stdin is not None
        line = msgspec.json.encode({"url": url, "access_key": access_key, "secret": secret})
        self._process.stdin.write(line + b"\n")
        self._process.stdin.flush()

    def stop(self) -> None:
        """Make the emulator save its state and exit. Does not wait until it has exited."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    async def stopped(self) -> None:
        """Make the emulator save its state and exit, and wait until it has exited. After a time limit, kill it."""
        self.stop()
        await asyncio.wait([self._child.ended], timeout=_STOP_S)
        self._child.kill()


def local_variables(url: str) -> dict[str, str]:
    """Environment variables that make every AWS SDK in a function call thawd. The credentials come from `RoleKeys`.

    Args:
        url: URL of the server.
    """
    # Otherwise botocore puts prefixes such as "sync-" before the host name, for example for StartSyncExecution.
    plain_host = {"AWS_DISABLE_HOST_PREFIX_INJECTION": "true"}
    return {"AWS_ENDPOINT_URL": url, GUARDED: "local", **plain_host}


def real_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Environment variables with the user's own AWS credentials, for functions that use the user's account.

    Source: AWS SDKs and tools reference guide, "Settings reference".
    """
    names = {
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_PROFILE",
        "AWS_CONFIG_FILE",
        "AWS_SHARED_CREDENTIALS_FILE",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_ROLE_ARN",
        "AWS_ROLE_SESSION_NAME",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CA_BUNDLE",
    }
    variables = {name: value for name, value in environ.items() if name in names}
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    if region:
        variables |= {"AWS_REGION": region, "AWS_DEFAULT_REGION": region}
    home = environ.get("HOME", os.path.expanduser("~"))  # noqa: PTH111 - a text for an environment variable
    return {"HOME": home, **variables}


@dataclass(frozen=True, slots=True)
class EmulatorCallbacks:
    """Functions of the platform that are called for requests to the emulator.

    Attributes:
        accept: stores an asynchronous invocation.
        exists: raises if no function has this name and qualifier.
        owns: returns whether a path belongs to one of thawd's own buckets.
    """

    accept: Callable[[Invocation], Awaitable[None]]
    exists: Callable[[str, str | None], object]
    owns: Callable[[str], bool]

    def find(self, arn: str) -> tuple[str, str | None]:
        """Return the name and qualifier of the function with this ARN.

        Raises:
            ResourceNotFoundException: there is no such function (404).
        """
        name, qualifier = parse_function(arn)
        self.exists(name, qualifier)
        return name, qualifier


def proxy(emulator: Emulator, platform: EmulatorCallbacks, *, folder: Path, keys: RoleKeys) -> AwsProxy:
    """Make the proxy that forwards requests to the emulator, and invokes functions for events in its buckets.

    Args:
        emulator: a running emulator.
        platform: functions of the platform that the proxy calls.
        folder: folder of the emulator's state. The notification settings of its buckets are stored there, too.
        keys: the keys of functions.

    Raises:
        StartError: the stored notifications cannot be read.
    """
    notifications = BucketNotifications(accept=platform.accept, find=platform.find, encode=_encode, complain=complain)
    try:
        notifications.keep_in(folder / "notifications.json")
    except (OSError, ValueError, S3Error) as error:
        raise StartError(f"{folder / 'notifications.json'} cannot be read: {error}; repair or remove it") from error
    return AwsProxy(emulator.url, owns=platform.owns, notifications=notifications, keys=keys)


def _encode(happened: EmulatedObjectEvent) -> bytes:
    return s3_event.encode(
        s3_event.ObjectEvent(
            name=happened.name,
            bucket=happened.bucket,
            key=happened.key.encode(),
            size=happened.size,
            etag=happened.etag,
            sequencer=happened.sequencer,
            at_s=time.time(),
            request_id=happened.request_id,
        ),
        configuration_id=happened.configuration_id,
    )
