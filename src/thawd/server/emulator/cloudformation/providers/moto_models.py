"""Makes the resources for which moto has a class, and this package has no kind of its own.

The class of a type is in the models of the type's service. If it is not there, the models of all services are imported
to look for it, which takes more than a second.

moto's classes make a resource from its properties. Most of them cannot change a resource. So a changed resource is
replaced: the old one is deleted first. The objects are stored in moto's CloudFormation backend, and saved with its
state.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from thawd.server.emulator.cloudformation.errors import ResourceError
from thawd.server.emulator.cloudformation.providers import moto_deletions
from thawd.server.emulator.cloudformation.providers.aws_clients import Aws, tags_of
from thawd.server.emulator.cloudformation.providers.resource_kind import Kind, Made, Wanted
from thawd.server.emulator.cloudformation.stack_records import Resource, Stack

_KEPT = "_thawd_resources"
# Types whose class changes a resource without a loss.
_CHANGEABLE = frozenset(
    {"AWS::StepFunctions::StateMachine", "AWS::Kinesis::Stream", "AWS::ECR::Repository", "AWS::ECS::TaskDefinition"}
)
_FIXED = {
    "AWS::StepFunctions::StateMachine": frozenset({"StateMachineName", "StateMachineType"}),
    "AWS::Kinesis::Stream": frozenset({"Name"}),
    "AWS::ECR::Repository": frozenset({"RepositoryName"}),
}

# Properties that moto's classes need as numbers; the parameter of a template is a text.
_NUMBERS = frozenset({"DesiredCount", "RetentionPeriodHours", "ShardCount"})
_DEFAULTS: dict[str, dict[str, Any]] = {"AWS::SSM::Document": {"DocumentFormat": "JSON"}}

# moto's packages for services that have another name in types. The others have the same name, in small letters.
_PACKAGES = {"elasticloadbalancing": "elb", "elasticloadbalancingv2": "elbv2", "lambda": "awslambda"}

Properties = dict[str, Any]
Changing = Callable[[], AbstractContextManager[object]]


class MotoModels:
    """The kinds whose resources moto's classes make.

    Args:
        changing: returns a context in which moto's state may change; it is not saved meanwhile.
    """

    def __init__(self, changing: Changing) -> None:
        self._changing = changing
        self._lock = threading.Lock()
        self._kinds: dict[str, Kind] = {}

    def find(self, kind: str, *, everywhere: bool = True) -> Kind | None:
        """Return the kind of a type; None: moto has no class for it.

        Args:
            kind: the type.
            everywhere: whether to look into the models of all services, if those of the type's service have no class.
        """
        if kind not in self._kinds:
            model = class_of(kind) or (class_anywhere(kind) if everywhere else None)
            if model is None or kind.startswith("AWS::Lambda::"):
                return None
            self._kinds[kind] = self._kind_of(kind, model)
        return self._kinds[kind]

    def _kind_of(self, kind: str, model: Any) -> Kind:
        def make(aws: Aws, wanted: Wanted) -> Made:
            with self._changing(), self._lock:
                found = model.create_from_cloudformation_json(
                    wanted.name, _json(wanted), wanted.stack.account, wanted.stack.region, **_facts(wanted)
                )
                return self._made(wanted, found)

        def change(aws: Aws, resource: Resource, wanted: Wanted) -> Made:
            with self._changing(), self._lock:
                stack = wanted.stack
                objects, key = _objects(stack.account, stack.region), resource.facts.get("key")
                if key not in objects:
                    raise ResourceError(f"Resource {resource.physical_id} was not found")
                found = model.update_from_cloudformation_json(
                    objects[key], wanted.name, _json(wanted), stack.account, stack.region
                )
                del objects[key]
                return self._made(wanted, found)

        def delete(aws: Aws, resource: Resource) -> None:
            if "key" not in resource.facts:
                return  # moto makes a resource and records it in one step, so it was not made
            account, region = resource.facts["place"]
            found = _objects(account, region).get(resource.facts["key"])
            if found is None or moto_deletions.delete(aws, resource, found):
                _objects(account, region).pop(resource.facts["key"], None)
                return
            with self._changing(), self._lock:
                try:
                    _delete(model, found, resource, account, region)
                except Exception as error:
                    if not _is_gone(error):
                        raise
                _objects(account, region).pop(resource.facts["key"], None)

        def change_tags(aws: Aws, resource: Resource, wanted: Wanted) -> None:
            found = _objects(wanted.stack.account, wanted.stack.region).get(resource.facts.get("key", ""))
            with self._changing(), self._lock:
                _tag(wanted, found, resource.physical_id)

        is_changeable = kind in _CHANGEABLE
        return Kind(
            make,
            delete,
            change if is_changeable else change_tags,
            fixed=_FIXED.get(kind, frozenset()),
            free=None if is_changeable else frozenset({"Tags"}),
            named=model.cloudformation_name_type() or "",
            makes_again=not is_changeable,
        )

    def _made(self, wanted: Wanted, found: Any) -> Made:
        stack = wanted.stack
        if found is None:
            raise ResourceError(f"the emulator made no resource of the type {wanted.kind}")
        found.cf_resource_type = wanted.kind
        found.logical_resource_id = wanted.logical_id
        identifier = str(getattr(found, "physical_resource_id", None) or wanted.name)
        _tag(wanted, found, identifier)
        return Made(identifier, Attributes(found), kept(stack, wanted.logical_id, identifier, found))


def class_of(kind: str) -> Any:
    """Return moto's class for a type, if the models of the type's service have it; otherwise None."""
    from moto.core.common_models import CloudFormationModel

    service = kind.split("::")[1].lower() if kind.count("::") else ""
    package = f"moto.{_PACKAGES.get(service, service)}"
    try:
        importlib.import_module(f"{package}.models")
    except ModuleNotFoundError:  # moto has no such service, or the service needs packages that are not installed
        return None
    classes = [each for each in CloudFormationModel.__subclasses__() if each.__module__.startswith(f"{package}.")]
    return next((each for each in classes if each.cloudformation_type() == kind), None)


def class_anywhere(kind: str) -> Any:
    """Return moto's class for a type, or None. Imports the models of all services whose resources stacks can have."""
    from moto.cloudformation.parsing import get_model_map

    return get_model_map().get(kind)


def kept(stack: Stack, logical_id: str, identifier: str, found: Any) -> Properties:
    """Store an object of moto for a stack. Return the facts with which it can be found."""
    key = f"{stack.id}/{logical_id}/{identifier}"
    _objects(stack.account, stack.region)[key] = found
    return {"key": key, "place": [stack.account, stack.region]}


def attributes_of(resource: Resource) -> Mapping[str, Any]:
    """Return the values of Fn::GetAtt for a resource of moto, read from its object, so that they are current."""
    place = resource.facts.get("place")
    found = _objects(*place).get(resource.facts["key"]) if place else None
    return resource.attributes if found is None else Attributes(found)


class Attributes(Mapping[str, Any]):
    """The attributes of a moto object. Each is read when it is needed."""

    def __init__(self, found: Any) -> None:
        self._found = found

    def __getitem__(self, name: str) -> Any:
        from moto.cloudformation.exceptions import UnformattedGetAttTemplateException

        try:
            return self._found.get_cfn_attribute(name)
        except (UnformattedGetAttTemplateException, NotImplementedError, AttributeError) as error:
            if name == "Arn" and (arn := _arn_of(self._found)):
                return arn
            raise KeyError(name) from error

    def __iter__(self) -> Iterator[str]:
        return iter(())  # moto does not list the names

    def __len__(self) -> int:
        return 0


def _arn_of(found: Any) -> str | None:
    """Return the ARN of a moto object. Some classes do not know it as an attribute: it is what Ref returns."""
    named = (getattr(found, "arn", None), getattr(found, "physical_resource_id", None))
    return next((each for each in named if isinstance(each, str) and each.startswith("arn:")), None)


def _objects(account: str, region: str) -> dict[str, Any]:
    """Return the objects of moto that stacks hold, in the backend with whose state they are saved."""
    from moto.cloudformation.models import cloudformation_backends

    backend = cloudformation_backends[account][region]
    found: dict[str, Any] = vars(backend).setdefault(_KEPT, {})
    return found


def _json(wanted: Wanted) -> Properties:
    properties = {**_DEFAULTS.get(wanted.kind, {}), **wanted.properties}
    for name in _NUMBERS & properties.keys():
        properties[name] = int(properties[name])
    return {"Type": wanted.kind, "Properties": properties}


def _facts(wanted: Wanted) -> dict[str, str]:
    return {"LogicalId": wanted.logical_id, "StackId": wanted.stack.id, "ResourceType": wanted.kind}


def _tag(wanted: Wanted, found: Any, identifier: str) -> None:
    """Tag resources of EC2 as CloudFormation does, so that they can be found by tag."""
    if "moto.ec2.models" not in sys.modules:  # then it is no resource of EC2
        return
    from moto.ec2.models import ec2_backends
    from moto.ec2.models.core import TaggedEC2Resource

    if isinstance(found, TaggedEC2Resource):
        stack = wanted.stack
        tags = {
            **stack.settings.tags,
            **(tags_of(wanted.properties) or {}),
            "aws:cloudformation:stack-name": stack.name,
            "aws:cloudformation:stack-id": stack.id,
            "aws:cloudformation:logical-id": wanted.logical_id,
        }
        ec2_backends[stack.account][stack.region].create_tags([identifier], tags)


def _delete(model: Any, found: Any, resource: Resource, account: str, region: str) -> None:
    method = getattr(found, "delete", None)
    if method is not None:
        try:
            method(account, region)
        except TypeError:  # another method of this name
            pass
        else:
            return
    deletes = model.delete_from_cloudformation_json
    if not hasattr(deletes, "__isabstractmethod__"):
        json_of = {"Type": resource.kind, "Properties": resource.properties}
        deletes(resource.physical_id, json_of, account, region)


def _is_gone(error: Exception) -> bool:
    if isinstance(error, KeyError):
        return True
    text = f"{type(error).__name__} {getattr(error, 'code', '')} {getattr(error, 'error_type', '')}"
    return any(word in text for word in ("NotFound", "NoSuch", "DoesNotExist", "NotExist"))
