"""Reads the tables about HTTP: ``[routes]``, ``[http]``, CORS, and function URLs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thawd.config import kinds
from thawd.config.findings import KeyPath
from thawd.config.kinds import Kind
from thawd.config.options import http as options
from thawd.config.sections.reader import Reader
from thawd.resources import Cors, FunctionUrl, HttpApi, Route

_ORIGIN = kinds.pattern(
    'an origin such as "https://example.com" or "http://localhost:3000", "https://*", "http://*" or "*"',
    r"\*|[a-z][a-z0-9+.-]*://(\*|[A-Za-z0-9._~-]+(:\d{1,5})?|\[[0-9A-Fa-f:]+\](:\d{1,5})?)",
)
_METHOD = kinds.pattern('a method in capitals, or "*"', r"\*|[A-Z]{1,16}")
_HEADER = kinds.pattern('a name of a header, or "*"', r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,1024}")
_LISTS = {"allow_origins": _ORIGIN, "allow_methods": _METHOD, "allow_headers": _HEADER, "expose_headers": _HEADER}


def read_routes(document: Mapping[str, object], reader: Reader) -> tuple[Route, ...]:
    """Read the ``[routes]`` table. `thawd.config.cross_checks` checks later whether its keys are route keys."""
    allowed = 'a table of route keys and functions, such as "POST /classify" = "classify"'
    table = reader.mapping(document.get("routes", {}), path=("routes",), allowed=allowed)
    return tuple(_route(key, value, reader) for key, value in table.items())


def _route(key: str, value: object, reader: Reader) -> Route:
    path = ("routes", key)
    if isinstance(value, dict):
        return Route(key=key, **reader.table(value, path=path, known=options.ROUTE_TABLE))
    return Route(key=key, function=str(value) if reader.accepts(options.ROUTE.kind, value, path=path) else "")


def read_http(document: Mapping[str, object], reader: Reader) -> HttpApi:
    """Read the ``[http]`` table."""
    values = reader.table(document.get("http", {}), path=("http",), known=options.HTTP)
    if "stage_variables" in values:
        values["stage_variables"] = _stage_variables(values["stage_variables"], reader)
    if "cors" in values:
        values["cors"] = read_cors(values["cors"], reader, path=("http", "cors"))
    return HttpApi(**values)


def _stage_variables(table: dict[str, object], reader: Reader) -> dict[str, str]:
    variables = {}
    for name, value in table.items():
        path = ("http", "stage_variables", name)
        if not options.STAGE_VARIABLE_NAME.accepts(name):
            found = f"the name {kinds.spell(name)}"
            reader.findings.add(path, found=found, allowed=options.STAGE_VARIABLE_NAME.allowed)
        elif reader.accepts(options.STAGE_VARIABLE_VALUE, value, path=path):
            variables[name] = str(value)
    return variables


def read_urls(document: Mapping[str, object], reader: Reader) -> dict[str, FunctionUrl]:
    """Read the ``[functions.NAME.url]`` tables. `thawd.config.sections.functions` reads the rest of a function."""
    functions = document.get("functions", {})
    urls = {}
    for name, function in functions.items() if isinstance(functions, dict) else ():
        if isinstance(function, dict) and isinstance(table := function.get("url"), dict):
            path = ("functions", name, "url")
            values = reader.table(table, path=path, known=options.URL)
            if "cors" in values:
                values["cors"] = read_cors(values["cors"], reader, path=(*path, "cors"))
            urls[name] = FunctionUrl(**values)
    return urls


def read_cors(table: object, reader: Reader, *, path: KeyPath) -> Cors:
    """Read a table of CORS options at `path`."""
    values: dict[str, Any] = reader.table(table, path=path, known=options.CORS)
    for name, kind in _LISTS.items():
        if name in values:
            values[name] = _texts(values[name], kind, reader, path=(*path, name))
    cors = Cors(**values)
    if cors.allow_credentials and "*" in cors.allow_origins:
        # Source: Fetch standard, "CORS protocol and credentials": browsers refuse "*" with credentials.
        allowed = 'named origins, "https://*" or "http://*", because allow_credentials is true'
        reader.findings.add((*path, "allow_origins"), found='"*"', allowed=allowed)
    return cors


def _texts(values: list[object], kind: Kind, reader: Reader, *, path: KeyPath) -> tuple[str, ...]:
    accepted = [reader.accepts(kind, value, path=(*path, index)) for index, value in enumerate(values)]
    return tuple(str(value) for value, is_good in zip(values, accepted, strict=True) if is_good)
