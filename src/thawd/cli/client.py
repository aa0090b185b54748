"""How the verbs of the command line speak to the running server: one HTTP request, with what lets it in."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING

from thawd.cli.terminal import sigpipe
from thawd.cli.verbs import fail
from thawd.server.claims import address_in

if TYPE_CHECKING:
    from thawd.config import Settings


def request(
    settings: Settings, path: str, body: bytes | None, headers: dict[str, str]
) -> tuple[int, dict[str, str], bytes]:
    """One request to the running server; ends the command when there is none.

    Args:
        settings: say where it listens, and what it wants to see.
        path: with the query string, percent-encoded.
        body: what is posted; None: it is a GET.
        headers: besides those that let us in.

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
        fail(
            f"the server at {host}:{port} ended the connection before it had answered ({error or type(error).__name__})"
        )
    except http.client.HTTPException as error:
        fail(f"what answers at {host}:{port} does not speak HTTP as thawd does ({error!r})")
    except OSError as error:
        fail(f"no thawd answers at {host}:{port} ({error}); start it with `thawd up -c {settings.path}`")


def signature(
    keys: Mapping[str, str], address: tuple[str, int], path: str, body: bytes | None, headers: Mapping[str, str]
) -> dict[str, str]:
    """Headers that sign a request, and those of its `headers` that must be signed, with the first of the keys."""
    import time

    from thawd.gateway.sigv4 import SignedRequest, sign
    from thawd.resources import REGION

    host, port = address
    host = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    access_key, secret = next(iter(keys.items()))
    raw_path, _, query = path.partition("?")
    signed = {"host": host, **{name.lower(): value for name, value in headers.items()}}
    sent = [(name.encode(), value.encode("latin-1")) for name, value in signed.items() if _must_be_signed(name)]
    made = SignedRequest("GET" if body is None else "POST", raw_path, query, sent, body or b"")
    return {"Host": host, **sign(made, access_key, secret, now_s=time.time(), scope=(REGION, "lambda"))}


def _must_be_signed(name: str) -> bool:
    return name == "host" or name.startswith("x-amz-")


def address(settings: Settings) -> tuple[str, int]:
    """Where the server of this data folder listens: the one it wrote down, else the configured one."""
    return address_in(settings.server.data) or (settings.server.host, settings.server.port)


def message_of(body: bytes) -> str:
    """What the body of an answer says is wrong."""
    try:
        return str(json.loads(body)["Message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")
