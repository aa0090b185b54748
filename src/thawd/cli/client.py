"""Sends a command's HTTP requests to the running server, with the credentials from the configuration."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from thawd.cli.exits import fail
from thawd.cli.output import sigpipe
from thawd.server.port_and_folder_locks import address_in

if TYPE_CHECKING:
    from thawd.config import Settings


def request(
    settings: Settings, path: str, body: bytes | None, headers: dict[str, str]
) -> tuple[int, dict[str, str], bytes]:
    """Send one request to the running server. If no server answers, the command ends.

    Args:
        settings: address and credentials of the server.
        path: path with query string, percent-encoded.
        body: body of a POST; None: the request is a GET.
        headers: headers to send in addition to the credentials.

    Returns:
        Status, headers (names in lower case), body.
    """
    import http.client

    server = settings.server
    host, port = address(settings)
    if server.key is not None:
        headers = {**headers, "X-Api-Key": server.key}
    elif server.access_keys:
        headers = {**headers, **signature(server.access_keys, (host, port), path, body, headers)}
    connection = http.client.HTTPConnection(host, port, timeout=960)
    try:
        with sigpipe(signal.SIG_IGN), contextlib.closing(connection):
            connection.request("GET" if body is None else "POST", path, body=body, headers=headers)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    except (http.client.IncompleteRead, ConnectionResetError, BrokenPipeError) as error:
        fail(f"the server at {host}:{port} closed the connection before it answered ({error or type(error).__name__})")
    except http.client.HTTPException as error:
        fail(
            f"the answer from {host}:{port} is not valid HTTP ({error!r}); find out which program uses the port, or "
            "start thawd with `thawd up`"
        )
    except OSError as error:
        fail(f"no thawd server answers at {host}:{port} ({error}); start it with `thawd up -c {settings.path}`")


def fetch(settings: Settings, path: str, body: bytes | None = None) -> Any:
    """Request a JSON document from the running server: a POST if there is a `body`, else a GET.

    If the answer has another status than 200 or is not JSON, the command ends.
    """
    status, _, answered = request(settings, path, body, {})
    if status != 200:
        fail(f"HTTP {status}: {message_of(answered)}")
    return parse_answer(answered)


def parse_answer(body: bytes) -> Any:
    """Parse the JSON document in an answer. If the body is not JSON, the command ends."""
    try:
        return json.loads(body)
    except ValueError:
        fail(
            "the answer is not JSON, so the server is not thawd; find out which program uses the port, or start thawd "
            "with `thawd up`"
        )


def signature(
    keys: Mapping[str, str], address: tuple[str, int], path: str, body: bytes | None, headers: Mapping[str, str]
) -> dict[str, str]:
    """Return the ``Host`` header of a request, and the headers that sign the request (Signature Version 4).

    Args:
        keys: secrets by access key id; the first one signs.
        address: host and port of the server.
        path: path with query string, percent-encoded.
        body: body of a POST; None: the request is a GET.
        headers: the other headers of the request.
    """
    import time

    from thawd.gateway.sigv4 import SignedRequest, sign
    from thawd.resources import REGION

    host, port = address
    host = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    access_key, secret = next(iter(keys.items()))
    raw_path, _, query = path.partition("?")
    signed = {"host": host, **{name.lower(): value for name, value in headers.items()}}
    sent = [(name.encode(), value.encode("latin-1")) for name, value in signed.items() if _must_be_signed(name)]
    unsigned = SignedRequest("GET" if body is None else "POST", raw_path, query, sent, body or b"")
    return {"Host": host, **sign(unsigned, access_key, secret, now_s=time.time(), scope=(REGION, "lambda"))}


def _must_be_signed(name: str) -> bool:
    return name == "host" or name.startswith("x-amz-")


def address(settings: Settings) -> tuple[str, int]:
    """Return host and port of the running server, which it wrote to its data folder; without them, the configured ones.

    The two differ if an option such as ``--port`` overrides the configuration.
    """
    return address_in(settings.server.data) or (settings.server.host, settings.server.port)


def message_of(body: bytes) -> str:
    """Return the error message in the body of an answer; the whole body if it contains none."""
    try:
        document = json.loads(body)
        # AWS spells the field differently in different errors, and thawd answers as AWS does.
        return str(document["Message"] if "Message" in document else document["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")
