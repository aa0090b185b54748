"""Reads the ``[deploy.aws]`` table."""

from __future__ import annotations

from collections.abc import Mapping

from thawd.config import kinds
from thawd.config.findings import KeyPath, one_of
from thawd.config.options import deploy as options
from thawd.config.sections.reader import Reader
from thawd.resources import AwsDeployment, AwsStatement

_TEXT = kinds.text("a text")


def read_deployment(document: Mapping[str, object], reader: Reader) -> AwsDeployment:
    """Read the ``[deploy]`` table, which has one table, ``aws``."""
    targets = reader.mapping(document.get("deploy", {}), path=("deploy",), allowed="a table, `[deploy.aws]`")
    for name in targets.keys() - {"aws"}:
        reader.findings.add(("deploy", name), found="an unknown option", allowed='the table "aws"')
    path = ("deploy", "aws")
    values = reader.table(targets.get("aws", {}), path=path, known=options.DEPLOY_AWS)
    if "statements" in values:
        functions = document.get("functions")
        names = list(functions) if isinstance(functions, dict) else []
        entries = enumerate(values["statements"])
        values["statements"] = tuple(
            _statement(entry, reader, path=(*path, "statements", index), functions=names) for index, entry in entries
        )
    return AwsDeployment(**values)


def _statement(table: object, reader: Reader, *, path: KeyPath, functions: list[str]) -> AwsStatement:
    values = reader.table(table, path=path, known=options.STATEMENT)
    for name in ("actions", "resources"):
        listed = values[name] if isinstance(values[name], list) else []
        values[name] = tuple(
            text for index, text in enumerate(listed) if reader.accepts(_TEXT, text, path=(*path, name, index))
        )
    if "function" in values and values["function"] not in functions:
        found = f'"{values["function"]}"'
        allowed = one_of(values["function"], functions, what="functions of this file")
        reader.findings.add((*path, "function"), found=found, allowed=allowed)
    return AwsStatement(**values)
