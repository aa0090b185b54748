"""Dynamic references: ``{{resolve:service:reference}}`` in a text stands for a value that another service keeps."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from thawd.deploy.templates.refusals import TemplateError

_REFERENCE = re.compile(r"\{\{resolve:([a-z-]+):([^{}]+)\}\}")
_PARAMETER = re.compile(r"([a-zA-Z0-9_.\-/]+|arn:[^:]*:ssm:[^:]*:[^:]*:parameter/[a-zA-Z0-9_.\-/]+)(?::(\d{1,9}))?")
_SECRET_ARN = re.compile(r"(arn:[^:]*:secretsmanager:[^:]*:[^:]*:secret:[^:]+)(?::(.*))?")


@dataclass(frozen=True, slots=True)
class DynamicReference:
    """A parsed dynamic reference.

    Attributes:
        service: ``ssm``, ``ssm-secure`` or ``secretsmanager``.
        name: the name or ARN of the parameter or secret.
        version: a parameter's version; None for the newest.
        json_key: the key in the secret's JSON object; None for the whole text.
        version_stage: the secret's staging label; None for ``AWSCURRENT``.
        version_id: the secret's version; None if a stage selects it.
    """

    service: str
    name: str
    version: int | None = None
    json_key: str | None = None
    version_stage: str | None = None
    version_id: str | None = None


def parse_reference(service: str, reference: str) -> DynamicReference:
    """Parse the two parts of ``{{resolve:service:reference}}``.

    Source: CloudFormation user guide, "Get values stored in other services using dynamic references".

    Raises:
        TemplateError: the service is unknown, or the reference has another form than the service's.
    """
    if service in ("ssm", "ssm-secure"):
        parameter = _PARAMETER.fullmatch(reference)
        if parameter:
            return DynamicReference(service, parameter[1], version=int(parameter[2]) if parameter[2] else None)
    elif service == "secretsmanager":
        arn = _SECRET_ARN.fullmatch(reference)
        name, rest = (arn[1], arn[2] or "") if arn else reference.partition(":")[::2]
        kind, key, stage, version, *more = [*rest.split(":"), "", "", "", ""][: max(4, rest.count(":") + 1)]
        if name and kind in ("", "SecretString") and not more and not (stage and version):
            return DynamicReference(
                service, name, json_key=key or None, version_stage=stage or None, version_id=version or None
            )
    raise TemplateError(
        f"Invalid dynamic reference {{{{resolve:{service}:{reference}}}}}: expected "
        "{{resolve:ssm:name:version}}, {{resolve:ssm-secure:name:version}} or "
        "{{resolve:secretsmanager:secret:SecretString:json-key:version-stage:version-id}}"
    )


def resolve_all(value: Any, resolve: Callable[[DynamicReference], str] | None) -> Any:
    """Return a value with each dynamic reference in its texts replaced. Keys of maps stay.

    Args:
        value: a JSON value, which may contain `Unknown`.
        resolve: returns what a reference names; None refuses each reference.

    Raises:
        TemplateError: a reference is malformed, or `resolve` finds nothing.
    """
    if isinstance(value, str) and "{{resolve:" in value:
        return _REFERENCE.sub(lambda found: look_up(parse_reference(found[1], found[2].strip()), resolve), value)
    if isinstance(value, list):
        return [resolve_all(each, resolve) for each in value]
    if isinstance(value, dict):
        return {key: resolve_all(each, resolve) for key, each in value.items()}
    return value


def look_up(reference: DynamicReference, resolve: Callable[[DynamicReference], str] | None) -> str:
    """Return the result of `resolve` for a reference.

    Raises:
        TemplateError: there is no such parameter or secret, or nothing can resolve the reference.
    """
    if resolve is None:
        raise TemplateError(f"The dynamic reference to {reference.name} in {reference.service} cannot be resolved here")
    try:
        return resolve(reference)
    except KeyError as error:
        if reference.service == "secretsmanager":
            raise TemplateError(
                f"Secrets Manager can't find the specified secret value for {reference.name}"
            ) from error
        raise TemplateError(
            f"Unable to fetch parameters [{reference.name}] from parameter store for this account."
        ) from error
