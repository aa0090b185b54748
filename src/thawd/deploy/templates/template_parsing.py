"""Parses the text of a template: JSON, or YAML with CloudFormation's short forms of intrinsic functions (``!Ref``).

YAML is read as by CloudFormation: version 1.1, with dates as texts. If a map contains a key twice, the last one
applies. A short document that would be large in memory because of anchors is refused.

Source: CloudFormation user guide, "CloudFormation template format".
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from thawd.deploy.templates.refusals import TemplateError

# A template may have 1 MB. Each use of an anchor counts.
_MOST_BYTES = 4 * 1024 * 1024
_MOST_NODES = 500_000
_DEEPEST = 100
_INT = "tag:yaml.org,2002:int"
_LONGEST_NUMBER = 1000

_WITH_PREFIX = (
    "And", "Base64", "Cidr", "Contains", "EachMemberEquals", "EachMemberIn", "Equals", "FindInMap", "GetAZs", "If",
    "ImportValue", "Join", "Length", "Not", "Or", "RefAll", "Select", "Split", "Sub", "ToJsonString", "Transform",
    "ValueOf", "ValueOfAll",
)  # fmt: skip


def parse(text: str) -> dict[str, Any]:
    """Parse a template.

    Args:
        text: the template, at most 4 MiB.

    Returns:
        The document, with intrinsic functions in their full form: ``{"Fn::GetAtt": ["Table", "Arn"]}``.

    Raises:
        TemplateError: the text is neither JSON nor YAML, or no map; a tag is unknown; the
            document is too large or too deep, or contains itself; or it is YAML, and PyYAML is not installed.
    """
    if len(text) > _MOST_BYTES:
        raise TemplateError(f"Template may not exceed {_MOST_BYTES} bytes in size.")
    document = _parsed_json(text) if text.lstrip("\ufeff \t\r\n").startswith("{") else None
    if document is None:
        document = _parsed_yaml(text)
    if not isinstance(document, dict):
        raise TemplateError("Template format error: unsupported structure.")
    return document


def _parsed_json(text: str) -> Any:
    """Return the document, or None if the text is no JSON; it may still be YAML."""
    try:
        document = json.loads(text.lstrip("\ufeff"))
    except RecursionError:
        raise TemplateError(f"Template format error: the template is nested more than {_DEEPEST} levels deep") from None
    except json.JSONDecodeError:
        return None
    except ValueError as error:  # a number with thousands of digits
        raise TemplateError(f"Template format error: JSON not well-formed. {error}") from None
    _refuse_depth(document, _DEEPEST)
    return document


def _refuse_depth(value: Any, levels: int) -> None:
    if levels < 0:
        raise TemplateError(f"Template format error: the template is nested more than {_DEEPEST} levels deep")
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            _refuse_depth(each, levels - 1)


def _parsed_yaml(text: str) -> Any:
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise TemplateError("Templates in YAML need PyYAML: pip install 'thawd[aws]'") from error
    fast: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader: Any = None
    try:
        _refuse_deep_yaml(yaml.parse(text, Loader=fast), yaml)
        loader = fast(text)
        node = loader.get_single_node()
        return None if node is None else _Construction(loader, yaml).value(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise TemplateError(f"Template format error: YAML not well-formed. {error.problem}{place}") from error
    except yaml.YAMLError as error:  # characters that YAML forbids
        raise TemplateError(f"Template format error: YAML not well-formed. {error}") from error
    finally:
        if loader is not None:
            loader.dispose()


def _refuse_deep_yaml(events: Any, yaml: Any) -> None:
    """Refuse a deep document before nodes are made of it: PyYAML's parser in C would overflow its stack."""
    levels = 0
    for event in events:
        levels += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if levels > _DEEPEST:
            raise TemplateError(f"Template format error: the template is nested more than {_DEEPEST} levels deep")


class _Construction:
    """Turns the nodes of one YAML document into values.

    Args:
        loader: a loader of PyYAML, whose own constructors make the scalars.
        yaml: the module.
    """

    def __init__(self, loader: Any, yaml: Any) -> None:
        self._loader, self._yaml = loader, yaml
        self._open: set[int] = set()  # the nodes that contain the current one
        self._nodes = 0
        scalars: dict[str, Callable[[Any], Any]] = {
            "tag:yaml.org,2002:null": lambda node: None,
            "tag:yaml.org,2002:bool": loader.construct_yaml_bool,
            _INT: loader.construct_yaml_int,
            "tag:yaml.org,2002:float": loader.construct_yaml_float,
            "tag:yaml.org,2002:str": lambda node: node.value,
            "tag:yaml.org,2002:timestamp": lambda node: node.value,
            "tag:yaml.org,2002:value": lambda node: node.value,
        }
        self._scalars = scalars

    def value(self, node: Any) -> Any:
        """Return the value of a node. Raises: TemplateError."""
        self._nodes += 1
        if self._nodes > _MOST_NODES:
            raise TemplateError(f"Template format error: the template has more than {_MOST_NODES} values")
        if id(node) in self._open:
            raise TemplateError(f"Template format error: an anchor contains itself{_place(node)}")
        if len(self._open) > _DEEPEST:
            raise TemplateError(f"Template format error: the template is nested more than {_DEEPEST} levels deep")
        self._open.add(id(node))
        try:
            return self._tagged(node) if node.tag.startswith("!") else self._plain(node)
        finally:
            self._open.discard(id(node))

    def _plain(self, node: Any) -> Any:
        tag = node.tag
        if isinstance(node, self._yaml.ScalarNode) and tag in self._scalars:
            if tag == _INT and len(node.value) > _LONGEST_NUMBER:
                raise TemplateError(
                    f"Template format error: a number has {len(node.value)} characters{_place(node)}; write it as text"
                )
            try:
                return self._scalars[tag](node)
            except (ValueError, KeyError, IndexError) as error:
                raise TemplateError(f"Template format error: {node.value!r} is no {tag[18:]}{_place(node)}") from error
        if isinstance(node, self._yaml.SequenceNode) and tag == "tag:yaml.org,2002:seq":
            return [self.value(each) for each in node.value]
        if isinstance(node, self._yaml.MappingNode) and tag == "tag:yaml.org,2002:map":
            return self._map(node)
        raise TemplateError(f"Template format error: YAML tag {tag} is not supported{_place(node)}")

    def _untagged(self, node: Any) -> Any:
        """Return the value of a node as if it had no tag. A scalar is a text: ``!Ref 123`` names a parameter."""
        if isinstance(node, self._yaml.ScalarNode):
            return node.value
        return (
            self._map(node) if isinstance(node, self._yaml.MappingNode) else [self.value(each) for each in node.value]
        )

    def _tagged(self, node: Any) -> Any:
        name, value = node.tag[1:], self._untagged(node)
        if name in ("Ref", "Condition"):
            return {name: value}
        if name == "GetAtt":
            if isinstance(value, str):
                resource, dot, attribute = value.partition(".")
                value = [resource, attribute] if dot else [resource]
            return {"Fn::GetAtt": value}
        if name in _WITH_PREFIX:
            return {f"Fn::{name}": value}
        raise TemplateError(f"Template format error: YAML tag !{name} is not supported{_place(node)}")

    def _map(self, node: Any) -> dict[str, Any]:
        made: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                merged = self._merged(value_node) | merged
                continue
            # Keys of a template are texts, even if they look like numbers or dates: 80: is "80".
            if not isinstance(key_node, self._yaml.ScalarNode):
                raise TemplateError(f"Template format error: a key is no text{_place(key_node)}")
            made[key_node.value] = self.value(value_node)
        return merged | made

    def _merged(self, node: Any) -> dict[str, Any]:
        """Return the maps behind ``<<``. For each key, the first map that contains it applies."""
        value = self.value(node)
        maps = value if isinstance(value, list) else [value]
        if not all(isinstance(each, dict) for each in maps):
            raise TemplateError(f"Template format error: << needs a map, or a list of maps{_place(node)}")
        made: dict[str, Any] = {}
        for each in maps:
            made = each | made
        return made


def _place(node: Any) -> str:
    return f" (line {node.start_mark.line + 1}, column {node.start_mark.column + 1})"
