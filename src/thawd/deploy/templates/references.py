"""Finds what a part of a template refers to, without evaluating it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from thawd.deploy.templates.refusals import TemplateError, check_length

_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_NAME = re.compile(r"[A-Za-z0-9_.:]+")


class Reference(NamedTuple):
    """A reference to a parameter, a pseudo parameter or a resource.

    Attributes:
        function: ``Ref``, ``Fn::GetAtt`` or ``Fn::Sub``.
        name: the parameter or resource.
        attribute: the resource's attribute; None for its ``Ref``.
    """

    function: str
    name: str
    attribute: str | None


def variables(text: str) -> Iterator[str]:
    """Yield the names in a text for ``Fn::Sub``, without literals (``${!Literal}``).

    Raises:
        TemplateError: a name has characters that CloudFormation does not allow.
    """
    for name in _VARIABLE.findall(text):
        if name.startswith("!"):
            continue
        if not _NAME.fullmatch(name.strip()):
            raise TemplateError(
                "Template error: variable names in Fn::Sub syntax must contain only alphanumeric characters, "
                f"underscores, periods, and colons: ${{{name}}}"
            )
        yield name.strip()


def substituted(text: str, value_of: Callable[[str], str]) -> str:
    """Replace the names in a text for ``Fn::Sub``. ``${!Literal}`` becomes ``${Literal}``.

    Raises:
        TemplateError: the text would be too long.
    """
    size = len(text)

    def replacement(found: re.Match[str]) -> str:
        nonlocal size
        name = found[1]
        value = f"${{{name[1:]}}}" if name.startswith("!") else value_of(name.strip())
        size += len(value)
        check_length(size, function="Fn::Sub")
        return value

    return _VARIABLE.sub(replacement, text)


def references(value: Any, is_true: Callable[[str], bool] | None = None) -> Iterator[Reference]:
    """Find the references in a part of a template.

    Args:
        value: the part.
        is_true: returns whether a condition holds. Only the branch of ``Fn::If`` that is taken is searched. None: both
            branches are searched.
    """
    if isinstance(value, list):
        for each in value:
            yield from references(each, is_true)
    if not isinstance(value, dict):
        return
    if len(value) == 1:
        [(function, argument)] = value.items()
        if function == "Ref" and isinstance(argument, str):
            yield Reference("Ref", argument, None)
            return
        if function == "Fn::GetAtt" and (named := attribute_of(argument)):
            yield Reference("Fn::GetAtt", *named)
            yield from references(argument[1:] if isinstance(argument, list) else [], is_true)
            return
        if function == "Fn::Sub":
            yield from _references_of_sub(argument, is_true)
            return
        if function == "Fn::If" and is_true and isinstance(argument, list) and len(argument) == 3:
            yield from references(argument[1 if is_true(argument[0]) else 2], is_true)
            return
    for each in value.values():
        yield from references(each, is_true)


def _references_of_sub(argument: Any, is_true: Callable[[str], bool] | None) -> Iterator[Reference]:
    text, local = argument, {}
    if isinstance(argument, list) and len(argument) == 2 and isinstance(argument[1], dict):
        text, local = argument
    if isinstance(text, str):
        for name in variables(text):
            if name not in local:
                resource, dot, attribute = name.partition(".")
                yield Reference("Fn::Sub", resource, attribute if dot else None)
    yield from references(list(local.values()), is_true)


def attribute_of(argument: Any) -> tuple[str, str | None] | None:
    """Return the resource and attribute in the argument of ``Fn::GetAtt``; None if the argument is malformed.

    The attribute is None if an intrinsic function computes it.
    """
    if isinstance(argument, str):
        resource, dot, attribute = argument.partition(".")
        return (resource, attribute) if dot and resource and attribute else None
    if isinstance(argument, list) and len(argument) >= 2 and isinstance(argument[0], str):
        if all(isinstance(each, str) for each in argument[1:]):
            return argument[0], ".".join(argument[1:])
        return (argument[0], None) if len(argument) == 2 else None
    return None
