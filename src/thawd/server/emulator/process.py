"""An emulator of other AWS services beside thawd, for handlers that call them: moto's server in a process of its own.

For development. What it holds lives in the data folder, and is there before functions are published. The emulator
itself writes it (`thawd.server.emulator.state`).
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from thawd.control.names import parse_function
from thawd.environments.children import Child, Children
from thawd.environments.version import GUARDED
from thawd.gateway.aws.notifications import BucketNotifications, EmulatedObjectEvent
from thawd.gateway.aws.proxy import AwsProxy
from thawd.gateway.s3.xml import S3Error
from thawd.invocation import Invocation
from thawd.resources import ACCOUNT_ID
from thawd.server.claims import StartError
from thawd.sources.buckets import s3_event
from thawd.stores.tables.access import AwsAccess
from thawd.telemetry.console import complain

_START_S = 60.0
_STOP_S = 60.0
_NEEDED = ("moto", "flask", "httpx")


class Emulator:
    """A running emulator.

    Attributes:
        url: where it serves, on loopback.
    """

    def __init__(self, process: subprocess.Popen[bytes], child: Child, url: str) -> None:
        self._process = process
        self._child = child
        self.url = url

    @classmethod
    async def start(
        cls, folder: Path, *, environ: Mapping[str, str], children: Children, lost: Callable[[], None]
    ) -> Emulator:
        """Start it and wait until it serves.

        Args:
            folder: where it keeps what it holds.
            environ: environment variables of the platform.
            children: takes note of the process, which is not a function's.
            lost: called when it has ended.

        Raises:
            StartError: it is not installed, or did not start.
        """
        missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            raise StartError(
                f"--aws needs {', '.join(missing)}, which is not installed; install it with: pip install 'thawd[aws]'"
            )
        process = subprocess.Popen(  # noqa: ASYNC220 - once, at the start
            [sys.executable, "-m", "thawd.server.emulator.program", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            # It emulates the account that thawd's own ARNs are of.
            env={**environ, "MOTO_ACCOUNT_ID": ACCOUNT_ID},
        )
        assert process.stdout is not None
        process.returncode = 0  # `Children` reaps it, not Popen
        child = children.watch(process.pid)
        child.outlasts = True  # it ends when we let it, with what it holds written, and never with functions' processes
        try:
            async with asyncio.timeout(_START_S):
                line = await asyncio.to_thread(process.stdout.readline)
        except TimeoutError:
            line = b""
        if not line.strip().isdigit():
            child.kill()
            raise StartError("the emulator of --aws did not start; what it says of that stands above")
        child.ended.add_done_callback(lambda _: lost())
        return cls(process, child, f"http://127.0.0.1:{int(line)}")

    @property
    def access(self) -> AwsAccess:
        """What thawd's own clients need to speak to it; any key does."""
        return AwsAccess(endpoint_url=self.url, access_key="test", secret="test")

    def stop(self) -> None:
        """Have it write what it holds, and end."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    async def stopped(self) -> None:
        """The same, once it has; one that takes too long is killed."""
        self.stop()
        await asyncio.wait([self._child.ended], timeout=_STOP_S)
        self._child.kill()


def local_variables(url: str, keys: Mapping[str, str]) -> dict[str, str]:
    """Environment variables with which every AWS SDK in a function speaks to thawd.

    Args:
        url: of the server.
        keys: access keys that requests to it must be signed with; none: it does not matter.
    """
    access_key, secret = next(iter(keys.items()), ("test", "test"))
    credentials = {"AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": secret}
    return {"AWS_ENDPOINT_URL": url, GUARDED: "local", **credentials}


def real_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The caller's own credentials, for functions that are to use the caller's own account.

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
    given = {name: value for name, value in environ.items() if name in names}
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    if region:
        given |= {"AWS_REGION": region, "AWS_DEFAULT_REGION": region}
    home = environ.get("HOME", os.path.expanduser("~"))  # noqa: PTH111 - a text for an environment variable
    return {"HOME": home, **given}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the emulated services work together with.

    Attributes:
        accept: stores an asynchronous invocation.
        exists: raises when there is no function of a name and qualifier.
        owns: whether a path is of one of thawd's own buckets.
    """

    accept: Callable[[Invocation], Awaitable[None]]
    exists: Callable[[str, str | None], object]
    owns: Callable[[str], bool]

    def find(self, arn: str) -> tuple[str, str | None]:
        """Name and qualifier of the function that an ARN names.

        Raises:
            ResourceNotFoundException: there is none (404).
        """
        name, qualifier = parse_function(arn)
        self.exists(name, qualifier)
        return name, qualifier


def proxy(emulator: Emulator, around: Surroundings, *, folder: Path) -> AwsProxy:
    """What passes requests on to the emulator, and fires functions for what happens in its buckets.

    Args:
        emulator: a running one.
        around: what it works together with.
        folder: where the emulator keeps what it holds; the notifications of its buckets are kept there, too.

    Raises:
        StartError: the notifications that were kept there cannot be read.
    """
    notifications = BucketNotifications(accept=around.accept, find=around.find, encode=_encode, complain=complain)
    try:
        notifications.keep_in(folder / "notifications.json")
    except (OSError, ValueError, S3Error) as error:
        raise StartError(f"{folder / 'notifications.json'} cannot be read: {error}; mend it, or remove it") from error
    return AwsProxy(emulator.url, owns=around.owns, notifications=notifications)


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
