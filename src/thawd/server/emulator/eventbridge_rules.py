"""EventBridge's rules: decides which events match a rule, and what each target gets.

This module runs in the emulator's own process. moto, the emulator, would fail or do nothing for most targets, and
ignores ``Input`` and ``InputPath``. Here thawd's own event patterns decide, and `eventbridge_targets` delivers.

Source: EventBridge user guide, "Amazon EventBridge event patterns", "Amazon EventBridge target input".
"""

from __future__ import annotations

import copy
import functools
import json
import re
import time
from functools import partial
from typing import Any

from thawd.grammar.event_patterns import Pattern, PatternError, decode
from thawd.server.emulator.eventbridge_targets import EventTargets, Sender

# The pieces of a template: an escaped character, a quotation mark, a name between angle brackets, or another character.
_PIECES = re.compile(r'\\.|"|<[\w.-]+>|.', re.DOTALL)
# The steps of a path: ``.name`` or ``[index]``.
_STEPS = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")


def install(targets: EventTargets) -> None:
    """Change ``moto.events.models``: rules deliver with `targets`."""
    from moto.events.models import Rule

    send_to_targets = Rule.send_to_targets

    def send(rule: Any, original_event: Any, transform_input: bool = True) -> None:
        if rule.state == "DISABLED" or not _matches(rule, original_event):
            return
        event = shown(original_event)
        for target in list(rule.targets):
            if _is_motos_own(target):
                only = copy.copy(rule)
                only.targets = [target]
                send_to_targets(only, original_event, transform_input)
            else:
                targets.send(target, partial(text_for, target, event, rule), sender_of(rule))

    setattr(Rule, "send_to_targets", send)  # noqa: B010 - mypy forbids to assign to a method


def sender_of(rule: Any) -> Sender:
    """Return the rule as the sender of its events."""
    return Sender("rule", rule.name, rule.arn)


def _is_motos_own(target: dict[str, Any]) -> bool:
    """Return whether moto itself delivers to a target, as it does to archives and API destinations."""
    arn = str(target["Arn"])
    return ":events:" in arn and ":event-bus/" not in arn


def _matches(rule: Any, event: Any) -> bool:
    text = rule.event_pattern._raw_pattern
    if not text:
        return False  # a rule with only a schedule
    pattern = _pattern(text)
    if pattern is None:
        return bool(rule.event_pattern.matches_event(event))
    return pattern.matches(decode(json.dumps(shown(event))))


@functools.lru_cache(1024)
def _pattern(text: str) -> Pattern | None:
    try:
        return Pattern(text)
    except PatternError:
        return None


def shown(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event of moto as EventBridge shows it: the time is text, and moto's own fields are left out."""
    made = {name: value for name, value in event.items() if name != "ingestion-time"}
    if isinstance(made.get("time"), (int, float)):
        made["time"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(made["time"]))
    return made


def text_for(target: dict[str, Any], event: dict[str, Any], rule: Any) -> str:
    """Return the JSON text that a rule's target gets. The arguments and errors are those of `input_of`."""
    return json.dumps(input_of(target, event, rule))


def input_of(target: dict[str, Any], event: dict[str, Any], rule: Any) -> Any:
    """Return the event, or the part or transformation of it, that a rule's target gets.

    Args:
        target: the target: with ``Input``, ``InputPath``, ``InputTransformer``, or none of them.
        event: the event, in the form of EventBridge.
        rule: moto's rule: its ``name`` and ``arn``.

    Raises:
        ValueError: ``Input``, or the output of the transformer, is not JSON.
    """
    if target.get("Input") is not None:
        return json.loads(target["Input"])
    if target.get("InputPath"):
        return _at(target["InputPath"], event)
    transformer = target.get("InputTransformer")
    if not transformer:
        return event
    values = {name: _at(path, event) for name, path in transformer.get("InputPathsMap", {}).items()}
    values |= {
        "aws.events.rule-arn": rule.arn,
        "aws.events.rule-name": rule.name,
        "aws.events.event": {name: value for name, value in event.items() if name != "detail"},
        "aws.events.event.json": event,
        "aws.events.event.ingestion-time": event.get("time"),
    }
    return json.loads(_filled(transformer["InputTemplate"], values))


def _filled(template: str, values: dict[str, Any]) -> str:
    """Return the template of a transformer with each ``<name>`` replaced by the value of that name.

    Between quotation marks, a string is inserted unchanged, and any other value as JSON. Elsewhere, every value is
    inserted as JSON.
    """
    parts: list[str] = []
    in_text = False
    for part in _PIECES.findall(template):
        if part == '"':
            in_text = not in_text
            parts.append(part)
        elif part[0] == "<" and part[-1] == ">" and part[1:-1] in values:
            value = values[part[1:-1]]
            if in_text:
                text = "" if value is None else value if isinstance(value, str) else json.dumps(value)
                parts.append(json.dumps(text)[1:-1])
            else:
                parts.append(json.dumps(value))
        else:
            parts.append(part)
    return "".join(parts)


def _at(path: str, event: Any) -> Any:
    """Return the value at a path such as ``$.detail.items[0].name``; None: there is none."""
    found = event
    for name, index in _STEPS.findall(path.removeprefix("$")):
        if name:
            found = found.get(name) if isinstance(found, dict) else None
        elif isinstance(found, list) and int(index) < len(found):
            found = found[int(index)]
        else:
            found = None
    return found
