"""Evaluates the templates of stacks, with their parameters, exports of other stacks and values of other services."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from thawd.deploy.templates import template_parsing
from thawd.deploy.templates.dynamic_references import DynamicReference
from thawd.deploy.templates.preparation import Prepared, prepare
from thawd.deploy.templates.refusals import TemplateError
from thawd.deploy.templates.values import Made, StackContext
from thawd.server.emulator.cloudformation.errors import StackError
from thawd.server.emulator.cloudformation.providers.aws_clients import Aws, is_gone
from thawd.server.emulator.cloudformation.providers.kinds_by_type import Registry
from thawd.server.emulator.cloudformation.stack_files import StackStore
from thawd.server.emulator.cloudformation.stack_records import Settings, Stack
from thawd.server.emulator.cloudformation.template_urls import fetched


class Planner:
    """Makes plans: prepared templates.

    Args:
        store: the stacks, with their exports.
        aws: clients for the services that dynamic references name.
        registry: the kinds of resources, with their attributes.
    """

    def __init__(self, store: StackStore, aws: Aws, registry: Registry) -> None:
        self._store = store
        self._aws = aws
        self._registry = registry

    def plan(self, stack: Stack, settings: Settings) -> Prepared:
        """Prepare a stack's template.

        Raises:
            StackError: the template or a parameter is wrong.
        """
        try:
            prepared = prepare(
                template_parsing.parse(settings.template), settings.parameters, self._context(stack, settings)
            )
            prepared.order()
            prepared.imports()
        except TemplateError as error:
            raise StackError(error.message) from error
        except ModuleNotFoundError as error:
            raise StackError(
                f"thawd needs {error.name} for this template, which is not installed; install it with: pip install "
                "'thawd[aws]'"
            ) from error
        return prepared

    def made(self, stack: Stack) -> Mapping[str, Made]:
        """Return the resources of a stack that exist, as templates refer to them."""
        return _Existing(stack, self._registry)

    def _context(self, stack: Stack, settings: Settings) -> StackContext:
        def exported(name: str) -> str | None:
            for other, output in self._store.exports(stack.account, stack.region):
                if output.export == name and other.id != stack.id and other.status != "DELETE_IN_PROGRESS":
                    return output.value
            return None

        return StackContext(
            account_id=stack.account,
            region=stack.region,
            stack_name=stack.name,
            stack_id=stack.id,
            notification_arns=tuple(settings.notification_arns),
            exports=exported,
            resolve=self._resolve,
            read=self._read,
        )

    def _read(self, place: str) -> str:
        """Return the text of an object that a template includes. Raises KeyError if there is none."""
        try:
            return fetched(self._aws, place)
        except StackError as error:
            raise KeyError(place) from error

    def _resolve(self, reference: DynamicReference) -> str:
        """Return the value behind a dynamic reference. Raises KeyError if there is none."""
        from botocore.exceptions import ClientError

        try:
            if reference.service == "secretsmanager":
                return self._secret(reference)
            name = f"{reference.name}:{reference.version}" if reference.version else reference.name
            found = self._aws.call("ssm", "get_parameter", {"Name": name, "WithDecryption": True})
            return str(found["Parameter"]["Value"])
        except ClientError as error:
            if is_gone(error) or "NotFound" in error.response["Error"]["Code"]:
                raise KeyError(reference.name) from error
            raise StackError(f"{reference.name} cannot be read: {error}") from error

    def _secret(self, reference: DynamicReference) -> str:
        given = {
            "SecretId": reference.name,
            "VersionStage": reference.version_stage,
            "VersionId": reference.version_id,
        }
        text = str(self._aws.call("secretsmanager", "get_secret_value", given)["SecretString"])
        if reference.json_key is None:
            return text
        try:
            value = json.loads(text)[reference.json_key]
        except (ValueError, TypeError) as error:
            raise KeyError(reference.json_key) from error
        return value if isinstance(value, str) else json.dumps(value)


class _Existing(Mapping[str, Made]):
    def __init__(self, stack: Stack, registry: Registry) -> None:
        self._stack = stack
        self._registry = registry

    def __getitem__(self, logical_id: str) -> Made:
        resource = self._stack.resources[logical_id]
        if not resource.physical_id:
            raise KeyError(logical_id)
        return Made(resource.physical_id, self._registry.attributes(resource))

    def __iter__(self) -> Iterator[str]:
        return (name for name, resource in list(self._stack.resources.items()) if resource.physical_id)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def imports_of(plan: Prepared) -> list[str]:
    """The names of the exports that a plan imports.

    Raises:
        StackError: one of them does not exist any more.
    """
    try:
        return sorted(plan.imports())
    except TemplateError as error:
        raise StackError(error.message) from error


def secrets_of(plan: Prepared) -> set[str]:
    """The values of a plan's parameters with NoEcho, and of the items of lists."""
    found: set[str] = set()
    for parameter in plan.parameters.values():
        if parameter.no_echo:
            values = [parameter.value] if isinstance(parameter.value, str) else parameter.value
            found |= {parameter.text, *values}
    return found - {""}


def shown_parameters(plan: Prepared) -> list[tuple[str, str, str | None]]:
    """Return name, shown value and resolved SSM value (None: no SSM parameter) of each of a plan's parameters."""
    return [(name, value.shown, None if value.no_echo else value.resolved) for name, value in plan.parameters.items()]
