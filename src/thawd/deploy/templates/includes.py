"""The macro AWS::Include: a snippet of a template, in a file or in a bucket, takes the place of ``Fn::Transform``.

Unlike AWS, thawd also accepts the short forms of functions in snippets in YAML.

Source: CloudFormation template reference, "AWS::Include transform".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from thawd.deploy.templates import template_parsing
from thawd.deploy.templates.refusals import TemplateError
from thawd.deploy.templates.values import Unknown

MACRO = "AWS::Include"
_FUNCTION = "Fn::Transform"


def has_includes(value: Any) -> bool:
    """Return whether a part of a template contains the macro."""
    if isinstance(value, list):
        return any(map(has_includes, value))
    if not isinstance(value, dict):
        return False
    return _name_of(value.get(_FUNCTION)) == MACRO or any(map(has_includes, value.values()))


def include(
    value: Any, evaluate: Callable[[Any], Any], read: Callable[[str], str] | None, *, section: str = _FUNCTION
) -> Any:
    """Return a part of a template with each macro replaced by its snippet.

    A snippet's keys are added to the keys beside ``Fn::Transform``. The latter have precedence.

    Args:
        value: the part. It stays as it is.
        evaluate: evaluates the functions in the macro's parameters.
        read: returns the text at a location: an address in S3, or a path. Raises KeyError if there is none.
        section: the key under which the macro is written: ``Fn::Transform``, or ``Transform`` at the top of a template.

    Raises:
        TemplateError: the location cannot be read, or it does not contain a map.
    """
    if isinstance(value, list):
        return [include(each, evaluate, read) for each in value]
    if not isinstance(value, dict):
        return value
    made = {key: include(each, evaluate, read) for key, each in value.items() if key != section}
    if section not in value:
        return made
    if _name_of(value[section]) != MACRO:
        return {**made, section: value[section]}
    return _snippet(value[section], evaluate, read) | made


def _name_of(macro: Any) -> Any:
    return macro.get("Name") if isinstance(macro, dict) else None


def _snippet(
    macro: Mapping[str, Any], evaluate: Callable[[Any], Any], read: Callable[[str], str] | None
) -> dict[str, Any]:
    parameters = macro.get("Parameters")
    location = evaluate(parameters.get("Location")) if isinstance(parameters, dict) else None
    if not isinstance(location, str) or isinstance(location, Unknown):
        raise TemplateError(f"Transform {MACRO} failed with: The location parameter is not a valid S3 uri or path.")
    if read is None:
        raise TemplateError(f"Transform {MACRO} failed with: {location} cannot be read here")
    try:
        text = read(location)
    except KeyError:
        raise TemplateError(f"Transform {MACRO} failed with: there is nothing at {location}") from None
    try:
        return template_parsing.parse(text)
    except TemplateError as error:
        raise TemplateError(f"Transform {MACRO} failed with: {location}: {error}") from error
