"""Prepares templates for tests, in an account that exists nowhere."""

from __future__ import annotations

from typing import Any

from thawd.deploy.templates.dynamic_references import DynamicReference
from thawd.deploy.templates.preparation import Prepared, prepare
from thawd.deploy.templates.template_parsing import parse
from thawd.deploy.templates.values import Made, StackContext

STORED = {"/db/host": "db.internal", "ids": "a, b,c", "secret": '{"user":"ann"}'}


def _resolve(reference: DynamicReference) -> str:
    return STORED[reference.name]


CONTEXT = StackContext(
    account_id="123456789012",
    region="eu-central-1",
    stack_name="app",
    stack_id="arn:aws:cloudformation:eu-central-1:123456789012:stack/app/0",
    exports={"net-Subnet": "subnet-1"}.get,
    resolve=_resolve,
)


def prepared(text: str, **parameters: str) -> Prepared:
    """The template `text`, with these parameters."""
    return prepare(parse(text), parameters, CONTEXT)


def value_of(function: str, *sections: str, made: dict[str, Made] | None = None, **parameters: str) -> Any:
    """What a property is whose value is `function`, in YAML, in a template that has these sections, too."""
    text = "\n".join(sections) + f"\nResources:\n  X:\n    Type: T::T::T\n    Properties:\n      P: {function}\n"
    text += "".join(f"  {name}: {{Type: T::T::T}}\n" for name in made or {})
    return prepared(text, **parameters).properties("X", made or {}).get("P", "absent")
