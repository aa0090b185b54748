"""Finds a user name and password for a registry in the files that ``docker login`` and ``podman login`` write.

Credential helpers (``credHelpers``, ``credsStore``) are programs that store passwords. thawd does not run them. If only
a helper has the password for a registry, the error says so. No password or token appears in a message or a log.

Source: https://docs.docker.com/reference/cli/docker/login/, containers-auth.json(5).
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thawd.errors import ImageError
from thawd.oci.references import DOCKER

_DOCKER_KEYS = ("docker.io", "index.docker.io", "https://index.docker.io/v1/", "registry-1.docker.io")
_VERSIONS = ("v1", "v2")  # of the registry's API, which ends some keys of Docker's


@dataclass(frozen=True, slots=True)
class Credentials:
    """A way to sign in to a registry.

    Attributes:
        username: user name; empty: none.
        password: password or token.
        identity_token: refresh token of the registry's token server, in place of a password; empty: none.
    """

    username: str
    password: str = field(repr=False)
    identity_token: str = field(default="", repr=False)


def find(registry: str, environ: Mapping[str, str], repository: str = "") -> tuple[Credentials | None, str]:
    """Return the credentials for a registry, and a hint in case the registry refuses.

    Args:
        registry: host and port.
        environ: environment variables: ``REGISTRY_AUTH_FILE``, ``DOCKER_CONFIG``, ``XDG_RUNTIME_DIR``, ``HOME``.
        repository: the repository there. Credentials for a part of the registry are used for that part only; of
            several that fit, those for the smallest part are used.

    Returns:
        The credentials, None if there are none; and what the user can do if the registry refuses.

    Raises:
        ImageError: a file exists and cannot be read as such a file (HTTP 400).
    """
    hint = f"sign in with `docker login {registry}` or `podman login {registry}`"
    for path in _files(environ):
        document = _read(path)
        auths = document.get("auths")
        auths = auths if isinstance(auths, dict) else {}
        fitting = [key for key in auths if _fits(key, registry, repository)]
        for key in sorted(fitting, key=lambda key: len(_part(key)), reverse=True):
            if isinstance(auths[key], dict) and (found := _credentials(auths[key], path)):
                return found, hint
        helpers = document.get("credHelpers")
        helper = helpers.get(registry) if isinstance(helpers, dict) else None
        if helper or document.get("credsStore"):
            program = f"docker-credential-{helper or document['credsStore']}"
            hint = (
                f"{path} leaves the password to the program {program}, which thawd does not run; write it into a file "
                f"with `REGISTRY_AUTH_FILE=auth.json podman login {registry}`, or as `auth` under `auths`"
            )
    return None, hint


def _files(environ: Mapping[str, str]) -> Iterator[Path]:
    if named := environ.get("REGISTRY_AUTH_FILE"):
        yield Path(named)
        return
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        yield Path(runtime, "containers", "auth.json")
    home = Path(environ.get("HOME") or "/nonexistent")
    yield home / ".config" / "containers" / "auth.json"
    yield Path(environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json"


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return {}
    except (ValueError, RecursionError):
        raise ImageError(f"{path} is not a JSON document; correct it, or sign in again") from None
    return document if isinstance(document, dict) else {}


def _keys(registry: str) -> set[str]:
    return {_host(key) for key in _DOCKER_KEYS} if registry == DOCKER else {registry}


def _host(key: str) -> str:
    """Return the host of a key: some tools write URLs."""
    without_scheme = key.partition("://")[2] or key
    return without_scheme.partition("/")[0].lower()


def _part(key: str) -> str:
    """Return the part of a registry that a key is for; empty: all of it. Source: containers-auth.json(5), "FORMAT"."""
    part = "" if "://" in key else key.partition("/")[2].strip("/")
    return "" if part in _VERSIONS else part


def _fits(key: str, registry: str, repository: str) -> bool:
    part = _part(key)
    return _host(key) in _keys(registry) and (not part or f"{repository}/".startswith(f"{part}/"))


def _credentials(auth: dict[str, Any], path: Path) -> Credentials | None:
    token = auth.get("identitytoken")
    if isinstance(auth.get("auth"), str) and auth["auth"]:
        try:
            decoded = base64.b64decode(auth["auth"], validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise ImageError(f"an `auth` in {path} is not base64 text; sign in again") from None
        username, _, password = decoded.partition(":")
    else:
        username, password = str(auth.get("username") or ""), str(auth.get("password") or "")
    if not username and not token:
        return None
    return Credentials(username, password.rstrip("\0"), str(token or ""))
