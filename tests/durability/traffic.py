"""Clients that upload and invoke while the server is killed, and that record what the server accepted."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError, EndpointConnectionError

from tests.clients import client_of
from tests.durability.ledger import BUCKET, FUNCTION, KINDS, Ledger, body_of
from tests.durability.server import Server, until

THREADS = 6
_PAUSE_S = 0.02


class Traffic:
    """Sends `uploads` objects and `invocations` events, each until the server accepts it.

    Half of the objects are sent by PUT. The others are files renamed into the bucket's folder, also while no server
    runs.

    Args:
        server: the server to send to; it may be down at times.
        ledger: records what was accepted.
        uploads: number of objects.
        invocations: number of asynchronous invocations.
        before_request: called just before each request.
    """

    def __init__(
        self,
        server: Server,
        ledger: Ledger,
        *,
        uploads: int,
        invocations: int,
        before_request: Callable[[], None] = lambda: None,
    ) -> None:
        self.total = uploads + invocations
        self._server = server
        self._ledger = ledger
        self._before_request = before_request
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._stopped = False
        work: list[Callable[[Any], None]] = [self._put] * (uploads // 2)
        work += [self._rename] * (uploads - uploads // 2)
        work += [self._invoke] * invocations
        random.Random(ledger.seed).shuffle(work)
        self._work: Iterator[Callable[[Any], None]] = iter(work)
        (server.root / BUCKET).mkdir(exist_ok=True)

    def run(self, threads: int = THREADS) -> tuple[ThreadPoolExecutor, list[Future[None]]]:
        """Start the clients. The futures end when everything has been accepted."""
        pool = ThreadPoolExecutor(threads, thread_name_prefix="client")
        return pool, [pool.submit(self._client) for _ in range(threads)]

    def stop(self) -> None:
        """Stop sending."""
        self._stopped = True

    def _client(self) -> None:
        services = {
            name: client_of(self._server.url, name, read_timeout=300, signature_version=None)
            for name in ("lambda", "s3")
        }
        while not self._stopped:
            with self._lock:
                send = next(self._work, None)
            if send is None:
                break
            send(services)
        for service in services.values():
            service.close()

    def _token(self) -> str:
        number = next(self._numbers)
        return f"{self._ledger.seed}-{number:06}-{KINDS[number % len(KINDS)]}"

    def _invoke(self, services: dict[str, Any]) -> None:
        """Send an event until one is accepted.

        Each attempt is a new event, as from a client that got no answer and tries again.
        """
        while not self._stopped:
            token = self._token()
            answer = self._try(
                token,
                token,
                lambda token=token: services["lambda"].invoke(
                    FunctionName=FUNCTION, InvocationType="Event", Payload=body_of(token)
                ),
            )
            if answer is not None:
                assert answer["StatusCode"] == 202
                self._ledger.accept(answer["ResponseMetadata"]["RequestId"], token)
                return

    def _put(self, services: dict[str, Any]) -> None:
        """Put the same object until it is accepted."""
        token = self._token()
        key = f"{token}.json"
        while not self._stopped:
            answer = self._try(
                key, token, lambda: services["s3"].put_object(Bucket=BUCKET, Key=key, Body=body_of(token))
            )
            if answer is not None:
                self._ledger.accept(key, token)
                return

    def _rename(self, _services: dict[str, Any]) -> None:
        token = self._token()
        folder = self._server.root / BUCKET
        staged = self._server.root / f"{token}.new"
        staged.write_bytes(body_of(token))
        staged.replace(folder / f"{token}.json")
        self._ledger.accept(f"{token}.json", token)

    def _try(self, key: str, token: str, request: Callable[[], Any]) -> Any:
        """Return the answer; None if there was none or it was a refusal."""
        until(lambda: self._server.serving or self._stopped)
        self._before_request()
        try:
            return request()
        except EndpointConnectionError:
            return None  # no server received it
        except (BotoCoreError, ClientError) as error:
            why = error.response["Error"]["Code"] if isinstance(error, ClientError) else type(error).__name__
            self._ledger.doubt(key, token, why)
            time.sleep(_PAUSE_S)  # as clients do, so that a refusing server has time for other work
            return None
