"""Reads the ``[server]`` table and the environment variables that override it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from thawd.config import kinds
from thawd.config.options import server as options
from thawd.config.sections.reader import Reader
from thawd.config.settings import ServerSettings, TlsSettings
from thawd.config.store_urls import REGISTRY, read_bucket_url, read_registry_url, read_url
from thawd.resources import RemoteBucket


def read_server(document: Mapping[str, object], reader: Reader, *, environ: Mapping[str, str]) -> ServerSettings:
    """Read the ``[server]`` table, overridden by environment variables."""
    values = reader.table(document.get("server", {}), path=("server",), known=options.SERVER)
    kind_of = {option.name: option.kind for option in options.SERVER}
    for variable, name in options.ENVIRONMENT_VARIABLES.items():
        if not (text := environ.get(variable)):
            continue
        value = _from_environment(name, text)
        if kind_of[name].accepts(value):
            values[name] = value
        else:
            found, allowed = kind_of[name].describe(value), kind_of[name].allowed
            reader.findings.add_environment(variable, found=found, allowed=allowed)
    data = reader.absolute(values.pop("data", ".thawd"))
    if "names" in values:
        named = enumerate(values["names"])
        values["names"] = tuple(
            str(name) for i, name in named if reader.accepts(options.HOST, name, path=("server", "names", i))
        )
    if "redact" in values:
        listed = enumerate(values["redact"])
        values["redact"] = tuple(
            str(name) for i, name in listed if reader.accepts(options.REDACTED_NAME, name, path=("server", "redact", i))
        )
    if "snapshot_store" in values:
        values["snapshot_store"] = _snapshot_store(values["snapshot_store"], reader, environ=environ)
        _require_own_folder(values["snapshot_store"], Path(data), reader)
    if "state" in values:
        values["state"] = read_url(
            values["state"],
            reader.findings,
            path=("server", "state"),
            schemes=("postgresql", "postgres"),
            environ=environ,
        )
    if "tls" in values:
        values["tls"] = _tls(values["tls"], reader)
    if values.get("durability") == "cluster" and "state" not in values:
        reader.findings.add(
            ("server", "durability"), found='"cluster" without a database', allowed='"cluster" only if state is set'
        )
    values["access_keys"] = _access_keys(values.get("access_keys", {}), reader)
    server = ServerSettings(data=data, **values)
    section = document.get("server")
    has_key = environ.get("THAWD_KEY") or (isinstance(section, dict) and "key" in section)
    if not has_key and not kinds.is_loopback(server.host):
        reader.findings.add(
            ("server", "key"),
            found=f"no key, though other machines can reach {server.host}",
            allowed="a key of at least 8 characters in the environment variable THAWD_KEY, "
            'or host = "127.0.0.1", which only this machine can reach',
        )
    return server


def _tls(table: object, reader: Reader) -> TlsSettings | None:
    """Return where the certificate is; None if that is not said, which has been reported."""
    values = reader.table(table, path=("server", "tls"), known=options.TLS)
    if not values["certificate"]:
        return None
    return TlsSettings(**{name: reader.absolute(text) for name, text in values.items()})


def _snapshot_store(text: str, reader: Reader, *, environ: Mapping[str, str]) -> Path | RemoteBucket | None:
    """Return the folder or the bucket; None if the URL has a mistake, which has been reported."""
    if "://" not in text:
        return reader.absolute(text)
    read = read_registry_url if text.startswith(f"{REGISTRY}://") else read_bucket_url
    place = read(text, reader.findings, path=("server", "snapshot_store"), environ=environ)
    return None if place is None else RemoteBucket(name="snapshot_store", **place)


def _require_own_folder(store: Path | RemoteBucket | None, data: Path, reader: Reader) -> None:
    """Refuse a store of chunks among thawd's own files, which would be taken for each other."""
    if isinstance(store, Path) and (store == data or (data / "snapshots") in (store, *store.parents)):
        found, allowed = f"a folder with thawd's own files, {store}", "a folder of its own, a bucket or a registry"
        reader.findings.add(("server", "snapshot_store"), found=found, allowed=allowed)


def _from_environment(name: str, text: str) -> object:
    """Convert the text of an environment variable to its option's value. If that is not possible, return the text."""
    if name == "port" and re.fullmatch(r"[0-9]{1,9}", text):
        return int(text)
    pairs = [pair.partition(":") for pair in text.split()]
    if name == "access_keys" and all(colon for _, colon, _ in pairs):
        return {access_key: secret for access_key, _, secret in pairs}
    return text


def _access_keys(table: dict[str, object], reader: Reader) -> dict[str, str]:
    keys = {}
    for name, secret in table.items():
        path = ("server", "access_keys", name)
        if not options.ACCESS_KEY_ID.accepts(name):
            # If the user has swapped the access key id and the secret, the name is the secret, so it is not shown.
            found = "an access key id (not shown)"
            reader.findings.add(("server", "access_keys"), found=found, allowed=options.ACCESS_KEY_ID.allowed)
        elif reader.accepts(options.SECRET_ACCESS_KEY, secret, path=path):
            keys[name] = str(secret)
    return keys
