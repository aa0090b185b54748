"""The intrinsic functions whose result depends on their arguments only. `intrinsic_functions` evaluates the arguments.

Each returns `Unknown` if an argument that it needs is unknown.

Source: CloudFormation template reference, "Intrinsic function reference".
"""

from __future__ import annotations

import base64
import ipaddress
import json
from collections.abc import Callable
from typing import Any

from thawd.deploy.templates.refusals import TemplateError, check_length
from thawd.deploy.templates.values import Unknown, is_scalar, text_of, unknown_in

_JOIN = (
    "Template error: every Fn::Join object requires two parameters, (1) a string delimiter and (2) a list of strings "
    "to be joined or a function that returns a list of strings (such as Fn::GetAZs) to be joined."
)
_SPLIT = (
    "Template error: every Fn::Split object requires two parameters, (1) a string delimiter and (2) a string to be "
    "split or a function that returns a string to be split."
)
_SELECT = (
    "Template error: every Fn::Select object requires two parameters, the index and a list of values from which to "
    "select, or a function that returns such a list."
)
_CIDR = (
    "Template error: every Fn::Cidr object requires an IP block, a count from 1 to 256, and the number of subnet bits."
)


def join(argument: Any) -> Any:
    """``[delimiter, [texts]]``: the texts with the delimiter between them."""
    if not isinstance(argument, list) or len(argument) != 2 or not isinstance(argument[0], str | Unknown):
        raise TemplateError(_JOIN)
    delimiter, values = argument
    if isinstance(delimiter, Unknown) or isinstance(values, Unknown):
        return unknown_in([delimiter, values])
    if not isinstance(values, list) or not all(is_scalar(each) or isinstance(each, Unknown) for each in values):
        raise TemplateError(_JOIN)
    if unknown := unknown_in(values):
        return unknown
    texts = [text_of(each) for each in values]
    check_length(sum(map(len, texts)) + len(delimiter) * len(texts), function="Fn::Join")
    return delimiter.join(texts)


def split(argument: Any) -> Any:
    """``[delimiter, text]``: the list of texts between the delimiters."""
    if not isinstance(argument, list) or len(argument) != 2 or not isinstance(argument[0], str) or not argument[0]:
        raise TemplateError(_SPLIT)
    if isinstance(argument[1], Unknown):
        return argument[1]
    if not is_scalar(argument[1]):
        raise TemplateError(_SPLIT)
    return text_of(argument[1]).split(argument[0])


def select(argument: Any) -> Any:
    """``[index, list]``: the value at an index that counts from 0."""
    if not isinstance(argument, list) or len(argument) != 2:
        raise TemplateError(_SELECT)
    index, values = argument
    if isinstance(index, Unknown) or isinstance(values, Unknown):
        return unknown_in([index, values])
    if not isinstance(values, list) or not is_scalar(index):
        raise TemplateError(_SELECT)
    if any(each is None for each in values):
        raise TemplateError("Template error: Fn::Select cannot have null values in its list")
    text = text_of(index)
    at = _whole_number(text)
    if at is None or at >= len(values):
        raise TemplateError(f"Template error: Fn::Select  cannot select nonexistent value at index {text[:80]}")
    return values[at]


def _whole_number(text: str) -> int | None:
    """The number that a text is, from 0 on; None: it is none, or has more than 9 digits."""
    return int(text) if text.isdecimal() and len(text) < 10 else None


def to_base64(argument: Any) -> Any:
    """Return the text in base64."""
    if isinstance(argument, Unknown):
        return argument
    if not is_scalar(argument):
        raise TemplateError("Template error: every Fn::Base64 object must have a String-typed value.")
    return base64.b64encode(text_of(argument).encode()).decode()


def cidr(argument: Any) -> Any:
    """``[block, count, bits]``: the first `count` subnets of a block that leave `bits` bits for hosts."""
    if isinstance(argument, list) and (unknown := unknown_in(argument)):
        return unknown
    if not isinstance(argument, list) or len(argument) not in (2, 3) or not all(map(is_scalar, argument)):
        raise TemplateError(_CIDR)
    block, *texts = [text_of(each) for each in argument]
    count, given = _whole_number(texts[0]), _whole_number((*texts, "0")[1])
    if count is None or given is None or not 1 <= count <= 256:
        raise TemplateError(_CIDR)
    try:
        network = ipaddress.ip_network(block, strict=False)
    except ValueError as error:
        raise TemplateError(f"Template error: Fn::Cidr: {error}") from error
    bits = given if len(texts) == 2 else (8 if network.version == 4 else 64)
    prefix = network.max_prefixlen - bits
    if prefix < network.prefixlen or 2 ** (prefix - network.prefixlen) < count:
        raise TemplateError(f"Template error: Fn::Cidr: {block} has no {count} subnets of {bits} bits")
    subnets = network.subnets(new_prefix=prefix)
    return [str(next(subnets)) for _ in range(count)]


def length(argument: Any) -> Any:
    """Return the number of items in a list."""
    if isinstance(argument, Unknown):
        return argument
    if not isinstance(argument, list):
        raise TemplateError("Template error: Fn::Length needs a list, or a function that returns a list.")
    return len(argument)


def to_json_string(argument: Any) -> Any:
    """Return a list or a map as JSON, without blanks."""
    if isinstance(argument, Unknown):
        return argument
    if not isinstance(argument, list | dict):
        raise TemplateError("Template error: Fn::ToJsonString needs a list or a map.")
    return unknown_in([argument]) or json.dumps(argument, separators=(",", ":"), ensure_ascii=False)


def equals(argument: Any) -> bool:
    """``[one, other]``: whether two values are equal. ``true`` equals ``"true"``: parameters are texts."""
    if not isinstance(argument, list) or len(argument) != 2:
        raise TemplateError("Template error: every Fn::Equals object requires a list of 2 string parameters.")
    return bool(_as_texts(argument[0]) == _as_texts(argument[1]))


def _as_texts(value: Any) -> Any:
    if is_scalar(value):
        return text_of(value)
    if isinstance(value, list):
        return [_as_texts(each) for each in value]
    return {key: _as_texts(each) for key, each in value.items()} if isinstance(value, dict) else value


BY_NAME: dict[str, Callable[[Any], Any]] = {
    "Fn::Base64": to_base64,
    "Fn::Cidr": cidr,
    "Fn::Join": join,
    "Fn::Select": select,
    "Fn::Split": split,
}
# Only with the transform AWS::LanguageExtensions.
EXTENDED: dict[str, Callable[[Any], Any]] = {"Fn::Length": length, "Fn::ToJsonString": to_json_string}
