"""Mapping templates of REST APIs: renders Velocity templates with API Gateway's variables.

Source: API Gateway developer guide, "Variables for data transformations for API Gateway" (``$input``, ``$context``,
``$util``, ``$stageVariables``). The form in which maps and lists are printed was recorded on AWS.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote_plus, unquote_plus

from thawd.server.emulator.api_gateway.json_paths import PathError, found_at

_HEXADECIMAL = re.compile(r"\\u([0-9a-f]{4})")


class TemplateError(Exception):
    """A template cannot be rendered; the message says why."""


class _Map(dict[str, Any]):
    """A JSON object as templates see it, with the methods of Java's Map."""

    def entrySet(self) -> _List:  # noqa: N802 - the name of Java's method
        return _List(_Map(key=key, value=value) for key, value in self.items())

    def keySet(self) -> _List:  # noqa: N802
        return _List(self.keys())

    def containsKey(self, key: str) -> bool:  # noqa: N802
        return key in self

    def isEmpty(self) -> bool:  # noqa: N802
        return not self

    def size(self) -> int:
        return len(self)

    def put(self, key: str, value: Any) -> Any:
        before = self.get(key)
        self[key] = value
        return before

    def putAll(self, values: Mapping[str, Any]) -> None:  # noqa: N802
        self.update(values)

    def remove(self, key: str) -> Any:
        return self.pop(key, None)

    def toString(self) -> str:  # noqa: N802
        return str(self)

    def __str__(self) -> str:
        return "{" + ", ".join(f"{key}={_printed(value)}" for key, value in self.items()) + "}"


class _List(list[Any]):
    """A JSON array as templates see it, with the methods of Java's List."""

    def size(self) -> int:
        return len(self)

    def isEmpty(self) -> bool:  # noqa: N802 - the name of Java's method
        return not self

    def get(self, index: int) -> Any:
        return self[index]

    def set(self, index: int, value: Any) -> Any:
        before, self[index] = self[index], value
        return before

    def add(self, value: Any) -> bool:
        self.append(value)
        return True

    def contains(self, value: Any) -> bool:
        return value in self

    def toString(self) -> str:  # noqa: N802
        return str(self)

    def __str__(self) -> str:
        return json.dumps(self, separators=(",", ":"), ensure_ascii=False)


class _Null(str):
    """The result of a JSONPath that matches nothing. On AWS, it equals both null and "", and is printed as ""."""

    def __eq__(self, other: object) -> bool:
        return other is None or other == ""

    def __hash__(self) -> int:
        return hash("")


def _printed(value: Any) -> str:
    if value is None or isinstance(value, _Null):
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def as_seen(value: Any) -> Any:
    """Return a value of JSON as templates see it."""
    if isinstance(value, Mapping):
        return _Map((str(key), as_seen(one)) for key, one in value.items())
    if isinstance(value, list | tuple):
        return _List(as_seen(one) for one in value)
    return value


class _Input:
    """``$input``.

    Args:
        body: the text of the body.
        parameters: the request's parameters by place: ``path``, ``querystring``, ``header``.
    """

    def __init__(self, body: str, parameters: Mapping[str, Mapping[str, str]]) -> None:
        self.body = body or "{}"
        self._parameters = parameters
        self._is_json = True
        try:
            self._document = json.loads(self.body)
        except ValueError:
            self._document, self._is_json = body, False

    def path(self, expression: str) -> Any:
        """Return the value at a JSONPath, for use in the template."""
        found = self._find(expression)
        return _Null() if found is None else as_seen(found)

    def json(self, expression: str) -> str:
        """Return the value at a JSONPath, as JSON text."""
        found = self._find(expression)
        return '""' if found is None else json.dumps(found, separators=(",", ":"), ensure_ascii=False)

    def params(self, name: str | None = None) -> Any:
        """One parameter, or all by place."""
        if name is None:
            return as_seen(self._parameters)
        for place in ("path", "querystring", "header"):
            for key, value in self._parameters[place].items():
                if key == name or (place == "header" and key.lower() == name.lower()):
                    return value
        return ""

    def _find(self, expression: str) -> Any:
        if not self._is_json and expression.strip() != "$":
            return None
        try:
            return found_at(expression, self._document)
        except PathError as error:
            raise TemplateError(str(error)) from error


class _Util:
    """``$util``."""

    def escapeJavaScript(self, text: Any) -> str:  # noqa: N802 - API Gateway's names
        # Apart from the apostrophe, the slash and upper-case hexadecimal digits, the sequences are those of JSON.
        escaped = json.dumps(_printed(text))[1:-1].replace("/", "\\/").replace("'", "\\'")
        return _HEXADECIMAL.sub(lambda match: "\\u" + match[1].upper(), escaped)

    def parseJson(self, text: str) -> Any:  # noqa: N802
        return as_seen(json.loads(text))

    def urlEncode(self, text: Any) -> str:  # noqa: N802
        return quote_plus(_printed(text))

    def urlDecode(self, text: str) -> str:  # noqa: N802
        return unquote_plus(text)

    def base64Encode(self, text: Any) -> str:  # noqa: N802
        return base64.b64encode(_printed(text).encode()).decode()

    def base64Decode(self, text: str) -> str:  # noqa: N802
        return base64.b64decode(text).decode(errors="replace")


class Rendered(NamedTuple):
    """A rendered template.

    Attributes:
        text: the text.
        requestOverride: what the template has set in ``$context.requestOverride``.
        responseOverride: what the template has set in ``$context.responseOverride``.
    """

    text: str
    requestOverride: dict[str, Any]  # noqa: N815 - API Gateway's names
    responseOverride: dict[str, Any]  # noqa: N815


def _plain(value: Any) -> Any:
    """Return a value of a template as JSON has it."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def rendered(
    template: str,
    *,
    body: str,
    parameters: Mapping[str, Mapping[str, str]],
    context: Mapping[str, Any],
    stage_variables: Mapping[str, str],
) -> Rendered:
    """Render a mapping template.

    Args:
        template: Velocity template.
        body: text of the body that the template maps.
        parameters: the request's parameters by place: ``path``, ``querystring``, ``header``.
        context: ``$context``.
        stage_variables: ``$stageVariables``.

    Raises:
        TemplateError: the template cannot be rendered, or no library for templates is installed.
    """
    try:
        import airspeed
    except ImportError as error:
        raise TemplateError(
            "mapping templates need airspeed-ext, which is not installed; install it with: pip install 'thawd[aws]'"
        ) from error
    seen: _Map = as_seen(context)
    overrides = {}
    for name in ("requestOverride", "responseOverride"):
        override = overrides[name] = seen.setdefault(name, _Map())
        for part in ("header", "path", "querystring"):
            override.setdefault(part, _Map())
    names = {
        "input": _Input(body, parameters),
        "util": _Util(),
        "context": seen,
        "stageVariables": as_seen(stage_variables),
    }
    try:
        return Rendered(str(airspeed.Template(template).merge(names)), **_plain(overrides))
    except TemplateError:
        raise
    except Exception as error:  # the library raises errors of many classes, and so do the values' methods
        raise TemplateError(f"the mapping template cannot be rendered: {error}") from error
