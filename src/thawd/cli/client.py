"""Sends a command's HTTP requests to the running server, with the credentials from the configuration.

By default that is the server that uses the configuration's data folder, and no other. A server of another project that
listens at the same address must neither run a function for this one nor see its key. So the address is looked up in
the data folder, and is valid only while a process holds the folder's lock.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
from typing import TYPE_CHECKING, Any

from thawd.cli.exits import fail
from thawd.cli.output import sigpipe
from thawd.server.port_and_folder_locks import address_in, is_locked

if TYPE_CHECKING:
    from thawd.config import Settings

URL_VARIABLE = "THAWD_URL"
"""Environment variable that names the server for commands; its data folder is not checked."""

_CONNECT_S = 1.0


Answer = tuple[int, dict[str, str], bytes]
"""Status, headers (names in lower case), body."""


class NoAnswerError(Exception):
    """No server answers. The text says why, and the way out."""


def request(settings: Settings, path: str, body: bytes | None, headers: dict[str, str]) -> Answer:
    """Send one request to the running server. If no server answers, the command ends. See `attempt`."""
    try:
        return attempt(settings, path, body, headers)
    except NoAnswerError as error:
        fail(str(error))


def attempt(
    settings: Settings, path: str, body: bytes | None, headers: dict[str, str], *, timeout_s: float = 960.0
) -> Answer:
    """Send one request to the running server.

    Args:
        settings: address and credentials of the server.
        path: path with query string, percent-encoded.
        body: body of a POST; None: the request is a GET.
        headers: headers to send in addition to the credentials.
        timeout_s: how long the server may send nothing, seconds.

    Raises:
        NoAnswerError: no server answers.
    """
    import http.client

    server = settings.server
    host, port = _find_address(settings)
    if server.key is not None:
        headers = {**headers, "X-Api-Key": server.key}
    elif server.access_keys:
        from thawd.gateway.request_signature import signature

        headers = {**headers, **signature(server.access_keys, (host, port), path, body, headers)}
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        with sigpipe(signal.SIG_IGN), contextlib.closing(connection):
            connection.request("GET" if body is None else "POST", path, body=body, headers=headers)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    except (http.client.IncompleteRead, ConnectionResetError, BrokenPipeError) as error:
        why = f"closed the connection before it answered ({error or type(error).__name__})"
        raise NoAnswerError(f"the server at {host}:{port} {why}") from None
    except http.client.HTTPException as error:
        raise NoAnswerError(
            f"the answer from {host}:{port} is not valid HTTP ({error!r}); find out which program uses the port, or "
            "start thawd with `thawd up`"
        ) from None
    except OSError as error:
        way_out = f"check {URL_VARIABLE}" if is_named() else f"start it with `thawd up -c {settings.path}`"
        raise NoAnswerError(f"no thawd server answers at {host}:{port} ({error}); {way_out}") from None


def fetch(settings: Settings, path: str, body: bytes | None = None) -> Any:
    """Request a JSON document from the running server: a POST if there is a `body`, else a GET.

    If the answer has another status than 200 or is not JSON, the command ends.
    """
    status, _, answered = request(settings, path, body, {})
    if status != 200:
        fail(f"HTTP {status}: {refusal(settings, status, message_of(answered))}")
    return parse_answer(answered)


def refusal(settings: Settings, status: int, message: str) -> str:
    """Return the message of an answer with an error; for a refused key, what a command needs in place of a header."""
    if status != 403 or "key is missing or wrong" not in message:
        return message
    if settings.server.key is None:
        return "the server has a key; set the environment variable THAWD_KEY to it"
    return "the server refuses the key of this command; compare THAWD_KEY, or server.key in the configuration, with its"


def parse_answer(body: bytes) -> Any:
    """Parse the JSON document in an answer. If the body is not JSON, the command ends."""
    try:
        return json.loads(body)
    except ValueError:
        fail(
            "the answer is not JSON, so the server is not thawd; find out which program uses the port, or start thawd "
            "with `thawd up`"
        )


def address(settings: Settings) -> tuple[str, int]:
    """Return host and port of the server that commands talk with. If there is none, the command ends.

    It is the server in the environment variable `URL_VARIABLE`, or the one that uses the configuration's data folder:
    its address is in that folder. If ``server.host`` is an address of another machine, it is the server there.
    """
    try:
        return _find_address(settings)
    except NoAnswerError as error:
        fail(str(error))


def _find_address(settings: Settings) -> tuple[str, int]:
    """See `address`.

    Raises:
        NoAnswerError: no server runs.
    """
    named = os.environ.get(URL_VARIABLE)
    if named:
        return _named_address(named)
    server = settings.server
    configured = (server.host, server.port)
    unreadable = None
    try:
        if is_locked(server.data):
            found = address_in(server.data)
            if found is None:
                raise NoAnswerError(
                    f"another thawd uses the data folder {server.data} and does not serve yet; try again in a moment"
                )
            return found
    except OSError as error:
        unreadable = error.strerror
    if not _is_of_another_machine(server.host):
        raise NoAnswerError(
            _none_runs(settings, configured) if unreadable is None else _hidden(settings, configured, unreadable)
        )
    return configured


def may_answer(settings: Settings) -> bool:
    """Whether there may be a server for this configuration; if not, `address` would end the command."""
    if is_named():
        return True
    try:
        return is_locked(settings.server.data) or _is_of_another_machine(settings.server.host)
    except OSError:
        return True  # a request says what is wrong


def _none_runs(settings: Settings, configured: tuple[str, int]) -> str:
    other = ""
    if _is_listening(configured):
        url = url_of(configured)
        other = (
            f". A program that does not use this folder, perhaps the server of another project, listens at {url}; if "
            f"you mean it, set {URL_VARIABLE}={url}"
        )
    return (
        f"no thawd server runs for {settings.path}: none uses its data folder {settings.server.data}; start it with "
        f"`thawd up -c {settings.path}`, or set THAWD_DATA if its server has another data folder{other}"
    )


def _hidden(settings: Settings, configured: tuple[str, int], reason: str) -> str:
    return (
        f"the data folder {settings.server.data} shows which server is that of {settings.path}, and it cannot be read "
        f"({reason}): run the command as the user that runs the server, or name the server with "
        f"{URL_VARIABLE}={url_of(configured)}"
    )


def is_named() -> bool:
    """Whether the environment variable `URL_VARIABLE` names the server."""
    return bool(os.environ.get(URL_VARIABLE))


def url_of(address: tuple[str, int]) -> str:
    """Return the URL of the server at an address, host and port."""
    host, port = address
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _named_address(url: str) -> tuple[str, int]:
    from urllib.parse import urlsplit

    address = None
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        if parts.scheme == "http" and parts.hostname and parts.path in {"", "/"} and not parts.query:
            address = (parts.hostname, parts.port or 80)
    if address is None:
        fail(f"{URL_VARIABLE} is {url!r}; write http://HOST:PORT, such as http://127.0.0.1:8350")
    return address


def _is_of_another_machine(host: str) -> bool:
    """Whether no program on this machine can listen on `host`. Source: bind(2), EADDRNOTAVAIL."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as trial:
            trial.bind((host, 0))
    except OSError as error:
        return error.errno == errno.EADDRNOTAVAIL
    return False


def _is_listening(address: tuple[str, int]) -> bool:
    """Whether a program accepts connections at an address. Nothing is sent to it."""
    try:
        socket.create_connection(address, timeout=_CONNECT_S).close()
    except OSError:
        return False
    return True


def message_of(body: bytes) -> str:
    """Return the error message in the body of an answer; the whole body if it contains none."""
    try:
        document = json.loads(body)
        # AWS spells the field differently in different errors, and thawd answers as AWS does.
        return str(document["Message"] if "Message" in document else document["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")
