"""A template's parameters: their declarations, and the checks of the values that a caller gives.

Source: CloudFormation user guide, "CloudFormation template Parameters syntax".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from thawd.deploy.templates.dynamic_references import look_up, parse_reference
from thawd.deploy.templates.refusals import TemplateError
from thawd.deploy.templates.values import StackContext, is_scalar, text_of

_SSM_VALUE = re.compile(r"AWS::SSM::Parameter::Value<(.+)>")
_TYPES = re.compile(
    r"String|Number|List<Number>|List<String>|CommaDelimitedList|AWS::SSM::Parameter::Name"
    r"|AWS::SSM::Parameter::Value<(String|CommaDelimitedList|List<[A-Za-z0-9:]+>|AWS::[A-Za-z0-9]+::[A-Za-z0-9:]+)>"
    r"|AWS::[A-Za-z0-9]+::[A-Za-z0-9:]+|List<AWS::[A-Za-z0-9]+::[A-Za-z0-9:]+>"
)
_DECLARED = {
    "Type", "Default", "Description", "NoEcho", "AllowedValues", "AllowedPattern", "ConstraintDescription", "MinLength",
    "MaxLength", "MinValue", "MaxValue",
}  # fmt: skip
_MASK = "****"
# Python's float() also accepts nan, inf and 1_000.
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ParameterValue:
    """The value of one parameter.

    Attributes:
        name: the parameter's name.
        type: its type, as it is declared.
        text: the value that the caller gave, or the default.
        value: the value of ``Ref``: a text or a list of texts. For an SSM type, it is the value in the parameter store.
        no_echo: whether `text` must not be shown.
    """

    name: str
    type: str
    text: str
    value: str | list[str]
    no_echo: bool

    @property
    def shown(self) -> str:
        """The text, or asterisks if it is secret."""
        return _MASK if self.no_echo else self.text

    @property
    def resolved(self) -> str | None:
        """The value in the parameter store, as DescribeStacks shows it; None: the type is not one of SSM's."""
        if not _SSM_VALUE.fullmatch(self.type):
            return None
        return self.value if isinstance(self.value, str) else ",".join(self.value)


def parameter_values(
    declared: Mapping[str, Any], given: Mapping[str, str], context: StackContext
) -> dict[str, ParameterValue]:
    """Check the given values against the declarations, and add the defaults.

    Args:
        declared: the section ``Parameters``.
        given: the caller's values, by name.
        context: resolves the SSM types.

    Raises:
        TemplateError: a declaration is malformed, a value is missing or breaks a constraint, a name is not declared.
    """
    unknown = sorted(given.keys() - declared.keys())
    if unknown:
        raise TemplateError(f"Parameters: [{', '.join(unknown)}] do not exist in the template")
    for name, declaration in declared.items():
        _check_declaration(name, declaration)
    missing = [name for name, declaration in declared.items() if name not in given and "Default" not in declaration]
    if missing:
        raise TemplateError(f"Parameters: [{', '.join(missing)}] must have values")
    return {name: _value(name, declaration, given, context) for name, declaration in declared.items()}


def _check_declaration(name: str, declaration: Any) -> None:
    if not isinstance(declaration, dict):
        raise TemplateError("Template format error: Every Parameters member must be an object.")
    if not re.fullmatch("[A-Za-z0-9]+", name):
        raise TemplateError(f"Template format error: Parameter name {name} is non alphanumeric.")
    if "Type" not in declaration:
        raise TemplateError("Template format error: Every Parameters object must contain a Type member.")
    if not isinstance(declaration["Type"], str) or not _TYPES.fullmatch(declaration["Type"]):
        raise TemplateError(f"Template format error: Unrecognized parameter type: {declaration['Type']}")
    odd = sorted(declaration.keys() - _DECLARED)
    if odd:
        raise TemplateError(f"Invalid template parameter property '{odd[0]}'")
    for limit in ("MinLength", "MaxLength", "MinValue", "MaxValue"):
        if not re.fullmatch(r"[+-]?\d+(\.\d+)?", text_of(declaration.get(limit, 0))):
            raise TemplateError(f"Template format error: {limit} of parameter {name} must be a number.")
    default = declaration.get("Default", "")
    if not is_scalar(default):
        raise TemplateError("Template format error: Every Default member must be a string.")


def _value(name: str, declaration: Any, given: Mapping[str, str], context: StackContext) -> ParameterValue:
    text = given[name] if name in given else text_of(declaration["Default"])
    kind = declaration["Type"]
    is_list = kind == "CommaDelimitedList" or kind.startswith("List<")
    items = _items(text) if is_list else [text]
    reason = next((why for item in items if (why := _broken(name, declaration, item))), None)
    if reason:
        described = declaration.get("ConstraintDescription")
        raise TemplateError(f"Parameter {name} failed to satisfy constraint: {described}" if described else reason)
    value: str | list[str] = items if is_list else text
    stored = _SSM_VALUE.fullmatch(kind)
    if stored:
        found = look_up(parse_reference("ssm", text), context.resolve)
        value = _items(found) if stored[1] == "CommaDelimitedList" or stored[1].startswith("List<") else found
    return ParameterValue(name, kind, text, value, text_of(declaration.get("NoEcho", False)).lower() == "true")


def _items(text: str) -> list[str]:
    """Return the items of a list parameter, without the blanks around them."""
    return [item.strip() for item in text.split(",")] if text else []


def _broken(name: str, declaration: Mapping[str, Any], item: str) -> str | None:
    """Return why a value, or one item of a list, breaks the declaration; None if it does not."""
    if declaration["Type"] in ("Number", "List<Number>") and (wanted := _wanted_number(declaration, item)):
        return f"Parameter '{name}' must be {wanted}"
    allowed = declaration.get("AllowedValues")
    least, most = int(float(declaration.get("MinLength", 0))), declaration.get("MaxLength")
    pattern = declaration.get("AllowedPattern")
    reason = None
    if isinstance(allowed, list) and item not in [text_of(each) for each in allowed]:
        reason = "be one of AllowedValues"
    elif len(item) < least:
        reason = f"contain at least {least} characters"
    elif most is not None and len(item) > float(most):
        reason = f"contain at most {most} characters"
    elif pattern is not None and not _matches(name, str(pattern), item):
        reason = f"match pattern {pattern}"
    return f"Parameter '{name}' must {reason}" if reason else None


def _wanted_number(declaration: Mapping[str, Any], item: str) -> str | None:
    """Return a description of the numbers that the declaration allows; None: the item is one of them."""
    if not _NUMBER.fullmatch(item.strip()):
        return "a number"
    number = float(item)
    least, most = declaration.get("MinValue"), declaration.get("MaxValue")
    if least is not None and number < float(least):
        return f"a number not less than {text_of(least)}"
    return f"a number not greater than {text_of(most)}" if most is not None and number > float(most) else None


# Java's names of character classes, which Python's expressions do not have.
_JAVA_CLASSES = {
    r"\p{Alpha}": "a-zA-Z", r"\p{Digit}": "0-9", r"\p{Alnum}": "a-zA-Z0-9", r"\p{Upper}": "A-Z", r"\p{Lower}": "a-z",
    r"\p{L}": "a-zA-Z", r"\p{N}": "0-9", r"\p{Space}": r"\s", r"\p{Punct}": r"!-/:-@\[-`{-~",
    r"\p{ASCII}": r"\x00-\x7f", r"\p{Print}": " -~", r"\p{Graph}": "!-~", r"\p{Blank}": r" \t",
}  # fmt: skip


def _matches(name: str, pattern: str, item: str) -> bool:
    """Return whether the whole item matches a pattern of Java's regular expressions."""
    for java, python in _JAVA_CLASSES.items():
        # Inside brackets the class is a part of the set, outside it is a set of its own.
        within = re.compile(rf"(\[[^\]]*){re.escape(java)}")
        while within.search(pattern):
            pattern = within.sub(lambda found: found[1] + python, pattern)  # noqa: B023 - called immediately
        pattern = pattern.replace(java, f"[{python}]")
    try:
        return re.fullmatch(pattern, item) is not None
    except re.error as error:
        raise TemplateError(f"AllowedPattern of parameter '{name}' cannot be evaluated: {error}") from error
