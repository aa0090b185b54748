"""Evaluates the IAM policies that authorizers return. No side effects.

Source: API Gateway developer guide, "Output from an API Gateway Lambda authorizer"; IAM user guide, "Policy evaluation
logic": an explicit deny wins, and what no statement allows is denied.
"""

from __future__ import annotations

import enum
from typing import Any

_ACTION = "execute-api:Invoke"


class Verdict(enum.Enum):
    """The result of evaluating a policy for a request."""

    ALLOWED = "allowed"
    DENIED = "denied"
    NOT_ALLOWED = "not allowed"


class PolicyError(ValueError):
    """A policy is malformed; the message says why."""


def verdict(document: Any, arn: str) -> Verdict:
    """Evaluate a policy for the invocation of a method.

    Conditions are not evaluated. So an Allow statement with a condition never allows, and a Deny statement with a
    condition always denies.

    Args:
        document: the policy document.
        arn: ARN of the method and path.

    Raises:
        PolicyError: the document is malformed.
    """
    if not isinstance(document, dict):
        raise PolicyError("policyDocument is not an object")
    statements = document.get("Statement")
    found = Verdict.NOT_ALLOWED
    for statement in statements if isinstance(statements, list) else [statements]:
        if not isinstance(statement, dict) or statement.get("Effect") not in ("Allow", "Deny"):
            raise PolicyError("policyDocument has a statement without the Effect Allow or Deny")
        if not _concerns(statement, arn):
            continue
        if statement["Effect"] == "Deny":
            return Verdict.DENIED
        if not statement.get("Condition"):
            found = Verdict.ALLOWED
    return found


def _concerns(statement: dict[str, Any], arn: str) -> bool:
    actions, resources = _texts(statement, "Action"), _texts(statement, "Resource")
    if "NotAction" in statement or "NotResource" in statement:
        raise PolicyError("NotAction and NotResource are not supported in the policy of an authorizer")
    return any(_matches(one.lower(), _ACTION.lower()) for one in actions) and any(
        _matches(one, arn) for one in resources
    )


def _texts(statement: dict[str, Any], name: str) -> list[str]:
    value = statement.get(name)
    listed = value if isinstance(value, list) else [value]
    texts = [one for one in listed if isinstance(one, str)]
    if not texts or len(texts) < len(listed):
        raise PolicyError(f"a statement of policyDocument has no {name}")
    return texts


def _matches(pattern: str, text: str) -> bool:
    """Return whether a text matches a pattern, in which ``*`` stands for any text and ``?`` for one character.

    Backtracking returns only to the last star. So the time is at most proportional to the product of both lengths.
    """
    at = place = 0
    star, taken = -1, 0  # the last star, and the place in the text after what it stands for
    while place < len(text):
        if at < len(pattern) and pattern[at] == "*":
            star, taken = at, place
            at += 1
        elif at < len(pattern) and pattern[at] in ("?", text[place]):
            at, place = at + 1, place + 1
        elif star >= 0:
            taken += 1
            at, place = star + 1, taken
        else:
            return False
    return not pattern[at:].strip("*")
