"""Reads the ``[functions.NAME]`` tables, except their URLs, sources and schedules, and the ``[runtimes]`` table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from thawd.config import kinds
from thawd.config.findings import KeyPath, one_of
from thawd.config.options import functions as options
from thawd.config.sections.environment_files import NOT_RESERVED, paths_of, variables_in
from thawd.config.sections.reader import Reader
from thawd.grammar import destination_names
from thawd.invocation import MAX_PAYLOAD_BYTES
from thawd.resources import (
    MAX_ENVIRONMENT_BYTES,
    PROVIDED_RUNTIMES,
    RUNTIMES,
    Batch,
    Function,
    ImageConfig,
    reserved_variables,
)


def read_functions(document: Mapping[str, object], reader: Reader) -> dict[str, Function]:
    """Read the ``[functions.*]`` tables, and the files with environment variables that they name."""
    functions = {}
    for name, table in reader.named(document, "functions", names=options.FUNCTION_NAME):
        path = ("functions", name)
        values = reader.table(table, path=path, known=options.FUNCTION)
        files = paths_of(values.get("environment_file"), reader)
        # A change of the struct `Function` makes a new version. A URL, source or provisioned schedule must not do that,
        # so they are not part of it. `sections.http` and `sections.sources` read them into structs of their own.
        for separate in ("url", "sources", "provisioned_schedule", "environment_file"):
            values.pop(separate, None)
        values["code"] = reader.absolute(values.get("code", "."))
        if "requirements" in values:
            values["requirements"] = reader.absolute(values["requirements"])
        if "prime" in values:
            values["prime"] = read_event(values["prime"], reader, path=(*path, "prime"))
        if "environment" in values:
            values["environment"] = _environment(values["environment"], reader, path=(*path, "environment"))
        if files:
            in_table = values.get("environment", {})
            in_files = variables_in(files, in_table, reader, path=(*path, "environment_file"))
            values["environment"] = in_files | in_table
            _check_size(values["environment"], reader, path=(*path, "environment_file"))
        if "image_config" in values:
            values["image_config"] = _image_config(values["image_config"], reader, path=(*path, "image_config"))
        _check_code(values, table, reader, path=path)
        if "batch" in values:
            values["batch"] = _batch(values["batch"], reader, path=(*path, "batch"))
        for outcome in ("on_success", "on_failure", "dead_letter"):
            if outcome in values:
                values[outcome] = destination_names.parse(values[outcome])
        functions[name] = Function(name=name, **values)
    return functions


def read_event(written: object, reader: Reader, *, path: KeyPath) -> bytes | None:
    """Return an event as JSON text, from a table in the file or from the JSON file that a text names."""
    allowed = f"JSON of at most {MAX_PAYLOAD_BYTES} bytes"
    if isinstance(written, str):
        file = reader.absolute(written)
        if not file.is_file():
            found = f"{'something that is not a regular file' if file.exists() else 'nothing'} at {file}"
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
            event = json.dumps(written, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            reader.findings.add(path, found=f"a table that is not JSON ({error})", allowed=allowed)
            return None
    if len(event) > MAX_PAYLOAD_BYTES:
        reader.findings.add(path, found=f"{len(event)} bytes", allowed=allowed)
        return None
    return event


def _batch(table: dict[str, object], reader: Reader, *, path: KeyPath) -> Batch | None:
    values = reader.table(table, path=path, known=options.BATCH)
    return Batch(**values) if values["size"] else None  # a missing or wrong size has been reported


def _image_config(table: dict[str, object], reader: Reader, *, path: KeyPath) -> ImageConfig:
    values = reader.table(table, path=path, known=options.IMAGE_CONFIG)
    for name in ("entry_point", "command"):
        if name in values:
            for text in values[name]:
                reader.accepts(options.ARGUMENT, text, path=(*path, name))
            values[name] = tuple(map(str, values[name]))
    return ImageConfig(**values)


def _check_code(values: dict[str, Any], table: object, reader: Reader, *, path: KeyPath) -> None:
    """Check that a function has either a handler or an image, and with an image nothing that is in the image."""
    written = table if isinstance(table, dict) else {}
    if "image" not in values:
        if "handler" not in written and isinstance(table, dict):
            reader.findings.add((*path, "handler"), found="nothing", allowed=kinds.handler().allowed)
        if "image_config" in written:
            reader.findings.add((*path, "image_config"), found="a table without image", allowed="image beside it")
    else:
        for name in ("handler", "code", "runtime", "python", "requirements"):
            if name in written:
                allowed = "nothing beside image: handler, code and interpreter are in the image"
                reader.findings.add((*path, name), found=f"{name} beside image", allowed=allowed)
    values.setdefault("handler", "")


def _environment(table: dict[str, object], reader: Reader, *, path: KeyPath) -> dict[str, str]:
    variables = {}
    reserved = reserved_variables(table)
    for name, value in table.items():
        if name in reserved:
            reader.findings.add((*path, name), found="a reserved name", allowed=NOT_RESERVED)
        elif not options.VARIABLE_NAME.accepts(name):
            found = f"the name {kinds.spell(name)}"
            reader.findings.add((*path, name), found=found, allowed=options.VARIABLE_NAME.allowed)
        elif reader.accepts(options.VARIABLE_VALUE, value, path=(*path, name)):
            variables[name] = str(value)
    _check_size(variables, reader, path=path)
    return variables


def _check_size(variables: Mapping[str, str], reader: Reader, *, path: KeyPath) -> None:
    size_bytes = sum(len(name.encode()) + len(value.encode()) for name, value in variables.items())
    if size_bytes > MAX_ENVIRONMENT_BYTES:
        allowed = f"names and values of at most {MAX_ENVIRONMENT_BYTES} bytes together"
        reader.findings.add(path, found=f"{size_bytes} bytes", allowed=allowed)


RUNTIMES_VARIABLE = "THAWD_RUNTIMES"
"""Environment variable with more entries for ``[runtimes]``, such as ``python3.14=python3.11,nodejs24.x=node``."""


def read_runtimes(document: Mapping[str, object], reader: Reader, *, environ: Mapping[str, str]) -> dict[str, str]:
    """Read the ``[runtimes]`` table, overridden by the environment variable."""
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
    for entry in filter(None, environ.get(RUNTIMES_VARIABLE, "").split(",")):
        name, _, interpreter = entry.partition("=")
        if name not in RUNTIMES or name in PROVIDED_RUNTIMES or not interpreter:
            allowed = "RUNTIME=INTERPRETER, several of them with a comma between, such as python3.14=python3.11"
            reader.findings.add_environment(RUNTIMES_VARIABLE, found=kinds.spell(entry), allowed=allowed)
        else:
            runtimes[name] = interpreter
    return runtimes
