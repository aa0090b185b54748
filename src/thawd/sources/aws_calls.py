"""Calls AWS with boto3 for event sources. Each call runs in a daemon thread, so that thawd can always stop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from thawd.errors import NoThreadError
from thawd.system import threads

T = TypeVar("T")
_CONNECT_S = 5


class SourceError(Exception):
    """A service cannot be reached or refuses a request; the message says why.

    Attributes:
        code: the service's error code; empty: the service did not answer.
    """

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An emulator of AWS, used instead of AWS.

    Attributes:
        url: the emulator's URL.
        access_key: id of an access key that the emulator accepts.
        secret: the access key's secret.
    """

    url: str
    access_key: str = "test"
    secret: str = "test"


def make_client(
    service: str, *, region: str, endpoint: Endpoint | None, url: str | None = None, answer_s: float, connections: int
) -> Any:
    """Make boto3's client of a service. This reads files and takes time. The client does not repeat failed calls.

    Args:
        service: the service's name in boto3.
        region: the service's region.
        endpoint: an emulator; None: AWS, or the endpoint in AWS's environment variables and configuration files.
        url: the service's URL if there is no emulator; None: as configured.
        answer_s: how long to wait for an answer, seconds.
        connections: highest number of connections that are kept open.

    Raises:
        SourceError: boto3 is not installed.
    """
    try:
        import boto3
        from botocore.config import Config
    except ImportError:
        raise SourceError("boto3 is not installed; install it with: pip install 'thawd[aws]'") from None
    config = Config(
        connect_timeout=_CONNECT_S,
        read_timeout=answer_s,
        retries={"total_max_attempts": 1},
        max_pool_connections=connections,
    )
    access: dict[str, Any] = {"endpoint_url": url}
    if endpoint is not None:
        access = {
            "endpoint_url": endpoint.url,
            "aws_access_key_id": endpoint.access_key,
            "aws_secret_access_key": endpoint.secret,
        }
    return boto3.session.Session().client(service, region_name=region, config=config, **access)


def explained(work: Callable[[], T]) -> T:
    """Run `work`, and raise any error of boto3 as a `SourceError` with a one-line message."""
    try:
        return work()
    except SourceError:
        raise
    except Exception as error:  # from botocore, urllib3 or the operating system: they all mean that the call failed
        code = str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))
        raise SourceError(" ".join(str(error).split()) or type(error).__name__, code=code) from error


async def in_thread(work: Callable[[], T], *, unwanted: Callable[[T], None] | None = None) -> T:
    """Run `work` in a daemon thread and return its value. If the caller is cancelled, `unwanted` gets the value.

    Raises:
        SourceError: no thread can be started.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def left_over(value: T) -> None:
        if unwanted is not None:
            unwanted(value)

    def resolve_unwanted(value: T) -> None:
        with contextlib.suppress(NoThreadError):  # unreleased messages become visible after their timeout
            threads.start(threading.Thread(target=left_over, args=(value,), daemon=True))

    def resolve(value: T) -> None:
        if future.cancelled():
            resolve_unwanted(value)
        else:
            future.set_result(value)

    def fail(error: Exception) -> None:
        if not future.cancelled():
            future.set_exception(error)

    def run() -> None:
        try:
            value = work()
        except Exception as error:
            _call(loop, fail, error)
        else:
            if not _call(loop, resolve, value):
                left_over(value)

    try:
        threads.start(threading.Thread(target=run, name="aws", daemon=True))
    except NoThreadError as error:
        raise SourceError(error.message) from error
    try:
        return await future
    except asyncio.CancelledError:
        if (
            future.done() and not future.cancelled() and future.exception() is None
        ):  # the value arrived together with the cancellation
            resolve_unwanted(future.result())
        raise


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[Any], None], value: Any) -> bool:
    """Make the loop call `function`. Return whether it will: False if the loop is closed."""
    try:
        loop.call_soon_threadsafe(function, value)
    except RuntimeError:
        return False
    return True
