"""The variables of serverless.yml: ``${self:custom.name}``, ``${opt:stage}``, ``${env:NAME, 'default'}``, ...

A variable whose source is unknown is left unchanged: it belongs to CloudFormation, for example ``${AWS::Region}``.

Source: Serverless Framework documentation, "Variables", version 3.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thawd.deploy.projects.stacks import ProjectError
from thawd.deploy.templates.refusals import TemplateError
from thawd.deploy.templates.template_parsing import parse
from thawd.deploy.templates.values import is_scalar, text_of
from thawd.resources import ACCOUNT_ID

_SOURCES = r"self|opt|env|file|sls|aws|param|ssm|cf|s3|git|strToBool|terraform|doppler|vault"
# The innermost variable: its contents have no other variable.
_VARIABLE = re.compile(rf"\$\{{\s*((?:{_SOURCES})(?:\(|:)[^${{}}]*)\}}")
_FILE = re.compile(r"file\(\s*([^)]*?)\s*\)(?::(.*))?")
_BOOLEAN = re.compile(r"strToBool\((.*)\)")
_DEEPEST = 50
_MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableSources:
    """Where the values of variables come from.

    Attributes:
        document: serverless.yml, not resolved.
        folder: its folder.
        stage: the stage.
        region: the region.
        parameters: values for ``${param:...}``.
        variables: environment variables.
    """

    document: Mapping[str, Any]
    folder: Path
    stage: str
    region: str
    parameters: Mapping[str, str]
    variables: Mapping[str, str]


def resolved(value: Any, sources: VariableSources, depth: int = 0) -> Any:
    """A part of serverless.yml with its variables replaced.

    Raises:
        ProjectError: a variable has no value and no default, contains itself, or needs what thawd does not read.
    """
    if depth > _DEEPEST:
        raise ProjectError("serverless.yml: a variable contains itself")
    if isinstance(value, dict):
        return {_text(key, sources, depth): resolved(each, sources, depth + 1) for key, each in value.items()}
    if isinstance(value, list):
        return [resolved(each, sources, depth + 1) for each in value]
    if not isinstance(value, str):
        return value
    found = _VARIABLE.search(value)
    if found is None:
        return value
    result = _value(found[1], sources, depth + 1)
    if found[0] == value.strip():
        return resolved(result, sources, depth + 1)
    if not is_scalar(result):
        raise ProjectError(f"serverless.yml: {found[0]} is no text, and stands within the text {value!r}")
    return resolved(value[: found.start()] + text_of(result) + value[found.end() :], sources, depth + 1)


def _text(key: str, sources: VariableSources, depth: int) -> str:
    text = resolved(key, sources, depth + 1)
    return text_of(text) if is_scalar(text) else key


def _value(contents: str, sources: VariableSources, depth: int) -> Any:
    """The value of a variable: of the first of its alternatives that has one."""
    for alternative in _alternatives(contents):
        value = _alternative(alternative, sources, depth)
        if value is not _MISSING and value is not None:
            return value
    raise ProjectError(f"serverless.yml: the variable ${{{contents.strip()}}} has no value; give it a default")


def _alternatives(contents: str) -> list[str]:
    """Return the parts between commas. Commas in brackets and in quotation marks do not separate."""
    parts, part, quote, brackets = [], "", "", 0
    for letter in contents:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        brackets += (letter == "(") - (letter == ")")
        if letter == "," and not quote and brackets == 0:
            parts.append(part)
            part = ""
        else:
            part += letter
    return [each.strip() for each in (*parts, part)]


def _alternative(text: str, sources: VariableSources, depth: int) -> Any:
    if text[:1] in ("'", '"') and text[-1:] == text[:1] and len(text) > 1:
        return text[1:-1]
    if text.startswith("file("):
        return _from_file(text, sources, depth)
    if found := _BOOLEAN.fullmatch(text):
        return _boolean(found[1].strip())
    source, colon, address = text.partition(":")
    return _of_source(source.strip(), address, sources, depth) if colon else _literal(text)


def _of_source(source: str, address: str, sources: VariableSources, depth: int) -> Any:
    match source:
        case "self":
            # The framework's defaults. Source: Serverless Framework, reference of serverless.yml, "Provider".
            defaults = {"provider.stage": "dev", "provider.region": sources.region}
            value = _at(sources.document, address, sources, depth)
            return defaults.get(address, _MISSING) if value is _MISSING else value
        case "param":
            return _parameter(address, sources)
        case "ssm":
            return f"{{{{resolve:ssm:{address}}}}}"
    known: dict[str, Mapping[str, str]] = {
        "opt": {"stage": sources.stage, "region": sources.region},
        "env": sources.variables,
        "sls": {"stage": sources.stage, "instanceId": "thawd"},
        "aws": {"accountId": ACCOUNT_ID, "region": sources.region},
    }
    if source not in known:
        variable = f"${{{source}:{address}}}"
        raise ProjectError(f"serverless.yml: thawd does not read {variable}; write its value, or ${{env:NAME}}")
    return known[source].get(address, _MISSING)


def _boolean(text: str) -> bool:
    """``strToBool(...)``: true, false, 1 or 0."""
    known = {"true": True, "1": True, "false": False, "0": False}
    if text.strip("'\"").lower() not in known:
        raise ProjectError(f"serverless.yml: ${{strToBool({text})}}: the value must be true, false, 1 or 0")
    return known[text.strip("'\"").lower()]


def _literal(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise ProjectError(f"serverless.yml: ${{{text}}} has no source; a text needs quotation marks") from None


def _parameter(name: str, sources: VariableSources) -> Any:
    """A value of ``--parameters``, else of the section ``stages`` or ``params``, for the stage or for all."""
    if name in sources.parameters:
        return sources.parameters[name]
    declared, stages = sources.document.get("params"), sources.document.get("stages")
    for stage in (sources.stage, "default"):
        for section in (_get(_get(stages, stage), "params"), _get(declared, stage)):
            if _get(section, name) is not None:
                return _get(section, name)
    return _MISSING


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _at(value: Any, address: str, sources: VariableSources, depth: int) -> Any:
    """The part of a document at an address: ``custom.tables.0``. Variables on the way are resolved."""
    for part in address.split(".") if address else ():
        if isinstance(value, str):
            value = resolved(value, sources, depth + 1)
        if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, dict) and part in value:
            value = value[part]
        else:
            return _MISSING
    return value


def _from_file(text: str, sources: VariableSources, depth: int) -> Any:
    found = _FILE.fullmatch(text)
    if found is None:
        raise ProjectError(f"serverless.yml: ${{{text}}} is malformed; expected ${{file(path):address}}")
    path = (sources.folder / found[1].replace("~", str(Path.home()), 1)).resolve()
    if not path.is_file():
        return _MISSING
    content = path.read_text(encoding="utf-8-sig")
    if path.suffix in (".yml", ".yaml", ".json"):
        try:
            return _at(parse(content), found[2] or "", sources, depth)
        except TemplateError as error:
            raise ProjectError(f"{path}: {error.message}") from error
    if path.suffix in (".js", ".cjs", ".mjs", ".ts"):
        raise ProjectError(f"serverless.yml: {path.name} is a program, which thawd does not run; write YAML or JSON")
    return content
