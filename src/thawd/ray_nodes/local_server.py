"""Requests of an agent to the thawd on its node, with the credentials of the configuration."""

from __future__ import annotations

import contextlib
import http.client

from thawd.config import Settings
from thawd.gateway.request_signature import signature
from thawd.server.port_and_folder_locks import address_in, is_locked


def ask(settings: Settings, path: str, body: bytes | None = None, *, timeout_s: float) -> tuple[int, bytes]:
    """Return status and body of the answer to a request: a POST if there is a `body`, else a GET.

    Args:
        settings: the configuration of the thawd.
        path: path of the request.
        body: body of a POST.
        timeout_s: how long the server may send nothing, seconds.

    Raises:
        OSError: no server answers.
    """
    server = settings.server
    address = address_in(server.data) if is_locked(server.data) else None
    if address is None:
        raise ConnectionRefusedError(f"no server uses {server.data}")
    headers: dict[str, str] = {}
    if server.key is not None:
        headers = {"X-Api-Key": server.key}
    elif server.access_keys:
        headers = signature(server.access_keys, address, path, body, {})
    connection = http.client.HTTPConnection(*address, timeout=timeout_s)
    with contextlib.closing(connection):
        try:
            connection.request("GET" if body is None else "POST", path, body=body, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except http.client.HTTPException as error:
            raise ConnectionAbortedError(f"the answer is not valid HTTP ({error!r})") from None
