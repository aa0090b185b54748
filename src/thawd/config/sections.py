"""From the tables of a parsed document to the structs, one table at a time.

Each mistake is noted and reading goes on, with the default in the place of the wrong value, so that the rest
is checked too. What tables say of each other is checked afterwards, in `thawd.config.references`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from thawd.config import kinds, options
from thawd.config.findings import Findings, KeyPath, one_of
from thawd.config.kinds import Kind
from thawd.config.options import Option
from thawd.config.settings import ServerSettings
from thawd.config.store_urls import read_bucket_url, read_table_url
from thawd.grammar import destination_names
from thawd.invocation import MAX_PAYLOAD_BYTES
from thawd.resources import (
    MAX_ENVIRONMENT_BYTES,
    PROVIDED_RUNTIMES,
    RUNTIMES,
    Bucket,
    Function,
    Notification,
    RemoteBucket,
    Table,
    reserved_variables,
)

# SQLite puts "-journal" behind the name of the file, and Linux allows names of 255 bytes.
_LONGEST_TABLE_FILE = 255 - len("-journal")


@dataclass(frozen=True, slots=True)
class Reader:
    """What reading any table needs.

    Attributes:
        folder: relative paths are taken from here.
        home: what ``~`` stands for, or None where the environment does not tell.
        findings: where mistakes go.
    """

    folder: Path
    home: str | None
    findings: Findings

    def absolute(self, text: str) -> Path:
        """The absolute path that `text` stands for."""
        if self.home and (text == "~" or text.startswith("~/")):
            text = self.home + text[1:]
        return self.folder / text

    def accepts(self, kind: Kind, value: object, *, path: KeyPath) -> bool:
        """Whether `value` is allowed; where not, that is noted."""
        if kind.accepts(value):
            return True
        self.findings.add(path, found=kind.describe(value), allowed=kind.allowed)
        return False

    def mapping(self, value: object, *, path: KeyPath, allowed: str) -> dict[str, object]:
        """`value` if it is a table, else an empty one, and that is noted."""
        if isinstance(value, dict):
            return value
        self.findings.add(path, found=kinds.table(allowed).describe(value), allowed=allowed)
        return {}

    def table(self, value: object, *, path: KeyPath, known: tuple[Option, ...]) -> dict[str, Any]:
        """The allowed values of a table, by option; the others, and unknown keys, are noted.

        A required option that is missing or wrong is given as an empty text.
        """
        by_name = {option.name: option for option in known}
        values: dict[str, Any] = {option.name: "" for option in known if option.required}
        table = self.mapping(value, path=path, allowed="a table of options")
        for key, entry in table.items():
            option = by_name.get(key)
            if option is None:
                allowed = one_of(key, by_name, what="options here")
                self.findings.add((*path, key), found="an unknown option", allowed=allowed)
            elif self.accepts(option.kind, entry, path=(*path, key)):
                values[key] = entry
        for name in values.keys() - table.keys():
            if isinstance(value, dict):
                self.findings.add((*path, name), found="nothing", allowed=by_name[name].kind.allowed)
        return values

    def named(self, document: Mapping[str, object], section: str, *, names: Kind) -> Iterator[tuple[str, object]]:
        """The tables of a section, such as ``functions``; a name that is not allowed is noted."""
        allowed = f"tables, each as [{section}.NAME]"
        for name, value in self.mapping(document.get(section, {}), path=(section,), allowed=allowed).items():
            if not names.accepts(name):
                found = f"the name {kinds.spell(name)}"
                self.findings.add((section, name), found=found, allowed=names.allowed)
            yield name, value


def read_server(document: Mapping[str, object], reader: Reader, *, environ: Mapping[str, str]) -> ServerSettings:
    """The ``[server]`` table, with what the environment overrides."""
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
    values["access_keys"] = _access_keys(values.get("access_keys", {}), reader)
    server = ServerSettings(data=data, **values)
    given = document.get("server")
    has_key = environ.get("THAWD_KEY") or (isinstance(given, dict) and "key" in given)
    if not has_key and not kinds.is_loopback(server.host):
        reader.findings.add(
            ("server", "key"),
            found=f"no key, though other machines can reach {server.host}",
            allowed="a key of at least 8 characters in the environment variable THAWD_KEY, "
            'or host = "127.0.0.1", which only this machine can reach',
        )
    return server


def _from_environment(name: str, text: str) -> object:
    """The value that an option has by an environment variable's text; the text itself where it is none."""
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
            # It may be the secret, put in the wrong place.
            found = "an access key id (not shown)"
            reader.findings.add(("server", "access_keys"), found=found, allowed=options.ACCESS_KEY_ID.allowed)
        elif reader.accepts(options.SECRET_ACCESS_KEY, secret, path=path):
            keys[name] = str(secret)
    return keys


def read_functions(document: Mapping[str, object], reader: Reader) -> dict[str, Function]:
    """The ``[functions.*]`` tables."""
    functions = {}
    for name, table in reader.named(document, "functions", names=options.FUNCTION_NAME):
        path = ("functions", name)
        values = reader.table(table, path=path, known=options.FUNCTION)
        values.pop("url", None)  # read by itself: a version does not change with its address
        values.pop("sources", None)  # nor with what invokes it
        values.pop("provisioned_schedule", None)  # nor with how many environments it has at what time
        values["code"] = reader.absolute(values.get("code", "."))
        if "requirements" in values:
            values["requirements"] = reader.absolute(values["requirements"])
        if "prime" in values:
            values["prime"] = read_event(values["prime"], reader, path=(*path, "prime"))
        if "environment" in values:
            values["environment"] = _environment(values["environment"], reader, path=(*path, "environment"))
        for outcome in ("on_success", "on_failure", "dead_letter"):
            if outcome in values:
                values[outcome] = destination_names.parse(values[outcome])
        functions[name] = Function(name=name, **values)
    return functions


def read_event(given: object, reader: Reader, *, path: KeyPath) -> bytes | None:
    """An event as JSON text, from the table itself or from the file that is named."""
    allowed = f"JSON of at most {MAX_PAYLOAD_BYTES} bytes"
    if isinstance(given, str):
        file = reader.absolute(given)
        if not file.is_file():
            found = f"{'something else' if file.exists() else 'nothing'} at {file}"
            reader.findings.add(path, found=found, allowed="a JSON file that exists")
            return None
        try:
            event = file.read_bytes()
            json.loads(event.decode())
        except OSError as error:
            found = f"the file {file}, which cannot be read ({error.strerror})"
            reader.findings.add(path, found=found, allowed="a readable JSON file")
            return None
        except (ValueError, RecursionError) as error:
            reader.findings.add(path, found=f"the file {file}, which is not JSON ({error})", allowed=allowed)
            return None
    else:
        try:
            event = json.dumps(given, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            reader.findings.add(path, found=f"a table that is not JSON ({error})", allowed=allowed)
            return None
    if len(event) > MAX_PAYLOAD_BYTES:
        reader.findings.add(path, found=f"{len(event)} bytes", allowed=allowed)
        return None
    return event


def _environment(table: dict[str, object], reader: Reader, *, path: KeyPath) -> dict[str, str]:
    variables = {}
    reserved = reserved_variables(table)
    for name, value in table.items():
        if name in reserved:
            allowed = "names that neither Lambda (AWS_REGION, LAMBDA_TASK_ROOT, ...) nor thawd (THAWD_*) reserves"
            reader.findings.add((*path, name), found="a reserved name", allowed=allowed)
        elif not options.VARIABLE_NAME.accepts(name):
            found = f"the name {kinds.spell(name)}"
            reader.findings.add((*path, name), found=found, allowed=options.VARIABLE_NAME.allowed)
        elif reader.accepts(options.VARIABLE_VALUE, value, path=(*path, name)):
            variables[name] = str(value)
    size_bytes = sum(len(name.encode()) + len(value.encode()) for name, value in variables.items())
    if size_bytes > MAX_ENVIRONMENT_BYTES:
        allowed = f"names and values of at most {MAX_ENVIRONMENT_BYTES} bytes together"
        reader.findings.add(path, found=f"{size_bytes} bytes", allowed=allowed)
    return variables


def read_buckets(
    document: Mapping[str, object], reader: Reader, *, environ: Mapping[str, str]
) -> tuple[dict[str, Bucket], dict[str, RemoteBucket]]:
    """The ``[buckets.*]`` tables: those that are folders, and those that are elsewhere."""
    buckets = {}
    remote = {}
    for name, table in reader.named(document, "buckets", names=options.BUCKET_NAME):
        path = ("buckets", name)
        values = reader.table(table, path=path, known=(*options.BUCKET, *options.REMOTE_BUCKET))
        notify = tuple(
            _notification(entry, reader, path=(*path, "notify", index))
            for index, entry in enumerate(values.get("notify", []))
        )
        if "url" in values:
            there = _remote_bucket(name, values, reader, environ=environ)
            if there is not None:
                remote[name] = msgspec.structs.replace(there, notify=notify)
            continue
        for option in ("poll_s", "existing", "notifications"):
            if option in values:
                reader.findings.add((*path, option), found=option, allowed="nothing: it goes with a url")
        folder = reader.absolute(values.get("path", name))
        buckets[name] = Bucket(name=name, path=folder, notify=notify)
    return buckets, remote


def _remote_bucket(
    name: str, values: Mapping[str, Any], reader: Reader, *, environ: Mapping[str, str]
) -> RemoteBucket | None:
    path = ("buckets", name)
    if "path" in values:
        reader.findings.add((*path, "path"), found="a path beside a URL", allowed="one of path and url")
    place = read_bucket_url(values["url"], reader.findings, path=(*path, "url"), environ=environ)
    if place is None:
        return None
    given = {option: values[option] for option in ("poll_s", "existing", "notifications") if option in values}
    if "notifications" in given:
        for option in ("poll_s", "existing"):
            if option in given:
                allowed = "nothing: with notifications it is not listed"
                reader.findings.add((*path, option), found=option, allowed=allowed)
        if place["url"].scheme != "s3":
            found = f"a queue for {place['url']}"
            reader.findings.add((*path, "notifications"), found=found, allowed="notifications of s3:// alone")
    return RemoteBucket(name=name, **place, **given)


def _notification(table: object, reader: Reader, *, path: KeyPath) -> Notification:
    values = reader.table(table, path=path, known=options.NOTIFICATION)
    if "events" in values:
        for index, event in enumerate(values["events"]):
            if event not in options.EVENT_TYPES:
                allowed = one_of(str(event), options.EVENT_TYPES, what="event types")
                reader.findings.add((*path, "events", index), found=kinds.spell(event), allowed=allowed)
        values["events"] = tuple(values["events"])
    return Notification(**values)


def read_tables(
    document: Mapping[str, object], reader: Reader, *, data: Path, environ: Mapping[str, str]
) -> dict[str, Table]:
    """The ``[tables.*]`` tables; `data` is the folder for those without path and URL."""
    tables = {}
    for name, table in reader.named(document, "tables", names=options.TABLE_NAME):
        path = ("tables", name)
        values = reader.table(table, path=path, known=options.TABLE)
        if "url" in values:
            if "path" in values:
                reader.findings.add((*path, "path"), found="a path beside a URL", allowed="one of path and url")
            url = read_table_url(values["url"], reader.findings, path=(*path, "url"), table=name, environ=environ)
            if url is not None:
                tables[name] = Table(name=name, url=url)
            continue
        file = reader.absolute(values["path"]) if "path" in values else data / "tables" / f"{name}.db"
        if len(file.name.encode()) > _LONGEST_TABLE_FILE:
            found = f"a file name of {len(file.name.encode())} bytes"
            allowed = f"a path whose last part has at most {_LONGEST_TABLE_FILE} bytes"
            reader.findings.add(("tables", name, "path"), found=found, allowed=allowed)
        tables[name] = Table(name=name, path=file)
    return tables


def read_runtimes(document: Mapping[str, object], reader: Reader) -> dict[str, str]:
    """The ``[runtimes]`` table."""
    allowed = 'a table of runtimes and interpreters, such as "nodejs20.x" = "/opt/node/bin/node"'
    runtimes = {}
    for name, text in reader.mapping(document.get("runtimes", {}), path=("runtimes",), allowed=allowed).items():
        path = ("runtimes", name)
        if name not in RUNTIMES or name in PROVIDED_RUNTIMES:
            interpreted = [runtime for runtime in RUNTIMES if runtime not in PROVIDED_RUNTIMES]
            allowed = one_of(name, interpreted, what="runtimes with an interpreter")
            reader.findings.add(path, found=f"the name {kinds.spell(name)}", allowed=allowed)
        elif reader.accepts(options.RUNTIME.kind, text, path=path):
            runtimes[name] = str(text)
    return runtimes
