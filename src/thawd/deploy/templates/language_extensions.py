"""The transform AWS::LanguageExtensions: loops, and functions where a template needs literals.

`Fn::Length`, `Fn::ToJsonString` and the default value of `Fn::FindInMap` are not here: `intrinsic_functions` evaluates
them, in templates with this transform only.

Source: CloudFormation template reference, "AWS::LanguageExtensions transform" and "Fn::ForEach".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from thawd.deploy.templates.refusals import TemplateError
from thawd.deploy.templates.values import Unknown, is_scalar, text_of

_LOOP = "Fn::ForEach::"
# A loop may be nested in four others. The output of loops may have as many values as a template.
_MOST_LOOPS = 5
_MOST_COPIES = 50_000
_NOT_ALPHANUMERIC = re.compile(r"[^A-Za-z0-9]")
# The sections in which loops may stand. Inside a resource, a loop may also stand in its properties.
_SECTIONS = ("Resources", "Conditions", "Outputs")

Evaluate = Callable[[Any], Any]


def expand(document: Mapping[str, Any], evaluate: Evaluate) -> dict[str, Any]:
    """Replace the loops, and the functions that name a resource, an attribute or a policy, by their results.

    Args:
        document: the template. It stays as it is.
        evaluate: evaluates values that depend only on parameters, pseudo parameters, mappings and conditions.

    Raises:
        TemplateError: a loop is malformed, nested too deeply, makes a key twice, or does not loop over a list.
    """
    expansion = _Expansion(evaluate)
    expanded = dict(document)
    for section in _SECTIONS:
        if isinstance(document.get(section), dict):
            expanded[section] = expansion.value(document[section], {})
    resources = expanded.get("Resources")
    for resource in resources.values() if isinstance(resources, dict) else ():
        for policy in ("DeletionPolicy", "UpdateReplacePolicy"):
            if isinstance(resource, dict) and isinstance(resource.get(policy), dict):
                resource[policy] = evaluate(resource[policy])
    return expanded


class _Expansion:
    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self._copies = 0

    def value(self, value: Any, loops: Mapping[str, str]) -> Any:
        """Return a part of the template, with the identifiers of the loops around it replaced.

        Args:
            value: the part.
            loops: the current value of each identifier.
        """
        if isinstance(value, str):
            return _replaced(value, loops)
        if isinstance(value, list):
            return [self.value(each, loops) for each in value]
        if not isinstance(value, dict):
            return value
        if len(value) == 1:
            [(function, argument)] = value.items()
            if function == "Ref":
                return self._ref(argument, loops)
            if function == "Fn::GetAtt" and isinstance(argument, list):
                return {function: [self._literal(each, loops) for each in argument]}
        made: dict[str, Any] = {}
        for key, each in value.items():
            entries = self._loop(key, each, loops) if key.startswith(_LOOP) else [(key, self.value(each, loops))]
            for name, one in entries:
                if name in made:
                    raise TemplateError(f"Template error: {key} makes {name} a second time")
                made[name] = one
        return made

    def _ref(self, name: Any, loops: Mapping[str, str]) -> Any:
        literal = self._literal(name, loops)
        return loops[literal] if isinstance(literal, str) and literal in loops else {"Ref": literal}

    def _literal(self, value: Any, loops: Mapping[str, str]) -> Any:
        """Return the text that a function makes where a template without this transform needs a literal."""
        value = self.value(value, loops)
        return self._evaluate(value) if isinstance(value, dict) else value

    def _loop(self, key: str, argument: Any, loops: Mapping[str, str]) -> list[tuple[str, Any]]:
        """Return the entries that a loop makes."""
        if not isinstance(argument, list) or len(argument) != 3 or not isinstance(argument[2], dict):
            raise TemplateError(f"Template error: {key} needs [identifier, collection, {{output key: output value}}]")
        identifier, collection, body = argument
        if not isinstance(identifier, str) or identifier in loops:
            raise TemplateError(f"Template error: {key} needs an identifier of its own, a text")
        if len(loops) >= _MOST_LOOPS:
            raise TemplateError(f"Template error: {key} is nested in more than {_MOST_LOOPS - 1} loops")
        made: list[tuple[str, Any]] = []
        for item in self._items(key, collection, loops):
            inner = {**loops, identifier: item}
            for name, value in body.items():
                self._copies += 1
                if self._copies > _MOST_COPIES:
                    raise TemplateError(f"Template error: loops make more than {_MOST_COPIES} copies")
                nested = name.startswith(_LOOP)
                made += (
                    self._loop(name, value, inner) if nested else [(_replaced(name, inner), self.value(value, inner))]
                )
        return made

    def _items(self, key: str, collection: Any, loops: Mapping[str, str]) -> list[str]:
        items = self._evaluate(self.value(collection, loops))
        if isinstance(items, Unknown) or not isinstance(items, list) or not all(map(is_scalar, items)):
            raise TemplateError(f"Template error: {key} needs a list of texts that does not depend on a resource")
        texts = [text_of(item) for item in items]
        if len(set(texts)) < len(texts):
            raise TemplateError(f"Template error: {key}: the collection has an item twice")
        return texts


def _replaced(text: str, loops: Mapping[str, str]) -> str:
    """Replace ``${Identifier}`` by the loop's value, and ``&{Identifier}`` by its letters and digits."""
    for identifier, value in loops.items():
        text = text.replace(f"${{{identifier}}}", value)
        if f"&{{{identifier}}}" in text:
            text = text.replace(f"&{{{identifier}}}", _NOT_ALPHANUMERIC.sub("", value))
    return text
