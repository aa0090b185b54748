"""Prepares a template: runs its transforms, checks its parameters, and offers its resources with their properties.

Usage::

    prepared = prepare(template_parsing.parse(text), {"Stage": "test"}, context)
    for logical_id in prepared.order():
        properties = prepared.properties(logical_id, made)
        made[logical_id] = Made(physical_id, attributes)  # after the resource was created
    outputs = prepared.outputs(made)
"""

from __future__ import annotations

import functools
import graphlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from thawd.deploy.templates import includes, language_extensions, sam_transform
from thawd.deploy.templates.conditions import Conditions, check_rules
from thawd.deploy.templates.dynamic_references import resolve_all
from thawd.deploy.templates.intrinsic_functions import Scope, evaluate
from thawd.deploy.templates.parameters import ParameterValue, parameter_values
from thawd.deploy.templates.references import references
from thawd.deploy.templates.refusals import TemplateError, unresolved
from thawd.deploy.templates.values import Made, StackContext, Unknown, is_scalar, text_of

LANGUAGE_EXTENSIONS = "AWS::LanguageExtensions"
_SECTIONS = {
    "AWSTemplateFormatVersion", "Conditions", "Description", "Hooks", "Mappings", "Metadata", "Outputs", "Parameters",
    "Resources", "Rules", "Transform",
}  # fmt: skip
_POLICIES = {
    "DeletionPolicy": {"Delete", "Retain", "RetainExceptOnCreate", "Snapshot"},
    "UpdateReplacePolicy": {"Delete", "Retain", "Snapshot"},
}
# Source: CloudFormation template reference, "DeletionPolicy attribute": the types that support snapshots.
_WITH_SNAPSHOTS = {
    "AWS::DocDB::DBCluster", "AWS::EC2::Volume", "AWS::ElastiCache::CacheCluster", "AWS::ElastiCache::ReplicationGroup",
    "AWS::Neptune::DBCluster", "AWS::RDS::DBCluster", "AWS::RDS::DBInstance", "AWS::Redshift::Cluster",
}  # fmt: skip
_LOGICAL_ID = re.compile("[A-Za-z0-9]{1,255}")


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource of a template whose condition holds.

    Attributes:
        logical_id: its name in the template.
        type: for example ``AWS::S3::Bucket``.
        raw_properties: its properties, not evaluated.
        depends_on: the resources in ``DependsOn`` that this stack has, by their logical ids.
        deletion_policy: ``Delete``, ``Retain``, ``RetainExceptOnCreate`` or ``Snapshot``; None if it is not written.
        update_replace_policy: ``Delete``, ``Retain`` or ``Snapshot``; None if it is not written.
        metadata: its metadata, not evaluated.
    """

    logical_id: str
    type: str
    raw_properties: Mapping[str, Any]
    depends_on: tuple[str, ...]
    deletion_policy: str | None
    update_replace_policy: str | None
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Output:
    """An output of a stack whose condition holds.

    Attributes:
        key: its name in the template.
        value: its value, a text; `Unknown` in a plan.
        description: its description, or None.
        export_name: the name of the export, or None.
    """

    key: str
    value: str | Unknown
    description: str | None
    export_name: str | None


def transforms_of(document: Mapping[str, Any]) -> list[str]:
    """Return the names of a template's transforms, in their order.

    Raises:
        TemplateError: ``Transform`` is neither a name nor a list of names.
    """
    declared = document.get("Transform", [])
    if isinstance(declared, dict) and declared.get("Name") == includes.MACRO:
        return []
    names = [declared] if isinstance(declared, str) else declared
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TemplateError("Template format error: Transform must be the name of a transform, or a list of names")
    return names


def prepare(document: Mapping[str, Any], parameters: Mapping[str, str], context: StackContext) -> Prepared:
    """Prepare a template.

    Args:
        document: the result of `template_parsing.parse`. It is not changed.
        parameters: the caller's values of the parameters.
        context: the values of the template's pseudo parameters and look-ups.

    Raises:
        TemplateError: the template is wrong, or contains something that cannot be evaluated.
    """
    transforms = transforms_of(document)
    document, values = _with_includes(document, parameters, context)
    for name in transforms:
        if name == LANGUAGE_EXTENSIONS:
            scope = _static_scope(document, values, context)
            document = language_extensions.expand(document, functools.partial(evaluate, scope=scope))
        else:
            document = _translated(document, values, context)
    processed = {name: section for name, section in document.items() if name != "Transform"}
    odd = sorted(processed.keys() - _SECTIONS)
    if odd:
        raise TemplateError(f"Template format error: Invalid template property or properties [{', '.join(odd)}]")
    return Prepared(processed, values, context, transforms=transforms)


def values_of_parameters(
    document: Mapping[str, Any], parameters: Mapping[str, str], context: StackContext
) -> dict[str, ParameterValue]:
    """Return the values of a template's parameters, those with defaults too. Its resources are not looked at.

    Args:
        document: the result of `template_parsing.parse`. It is not changed.
        parameters: the caller's values of the parameters.
        context: the values of the template's pseudo parameters and look-ups.

    Raises:
        TemplateError: a parameter is wrong, or the template has a transform that thawd does not have.
    """
    return _with_includes(document, parameters, context)[1]


def _with_includes(
    document: Mapping[str, Any], parameters: Mapping[str, str], context: StackContext
) -> tuple[Mapping[str, Any], dict[str, ParameterValue]]:
    """Return a template with the snippets that it includes, and the values of its parameters."""
    for name in transforms_of(document):
        if name not in (LANGUAGE_EXTENSIONS, sam_transform.TRANSFORM):
            raise TemplateError(
                f"No transform named {name} found. thawd has {LANGUAGE_EXTENSIONS} and {sam_transform.TRANSFORM}: "
                "write the result of another one into the template"
            )
    is_whole = isinstance(document.get("Transform"), dict)  # the macro at the top adds whole sections
    if is_whole or includes.has_includes(document):
        plain = {name: each for name, each in document.items() if name != "Transform"} if is_whole else document
        values = parameter_values(_section(plain, "Parameters"), parameters, context)
        scope = _static_scope(plain, values, context)
        section = "Transform" if is_whole else "Fn::Transform"
        document = includes.include(document, functools.partial(evaluate, scope=scope), context.read, section=section)
    return document, parameter_values(_section(document, "Parameters"), parameters, context)


def _static_scope(document: Mapping[str, Any], values: Mapping[str, ParameterValue], context: StackContext) -> Scope:
    scope = Scope(
        context=context,
        parameters={name: each.value for name, each in values.items()},
        mappings=_section(document, "Mappings"),
        is_true=lambda name: False,
        is_extended=LANGUAGE_EXTENSIONS in transforms_of(document),
    )
    return replace(scope, is_true=Conditions(_section(document, "Conditions"), scope).is_true)


def _translated(
    document: Mapping[str, Any], values: Mapping[str, ParameterValue], context: StackContext
) -> dict[str, Any]:
    parameters: dict[str, Any] = {name: each.value for name, each in values.items()}
    for name, value in context.pseudo_parameters().items():
        if isinstance(value, str):
            parameters[name] = value
    return sam_transform.translate(document, parameters, context.region)


def _section(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = document.get(name, {})
    if section is None:
        raise TemplateError(f"Template format error: [/{name}] 'null' values are not allowed in templates")
    if not isinstance(section, dict):
        raise TemplateError(f"Template format error: {name} must be an object.")
    return section


class Prepared:
    """A template whose transforms, parameters and conditions are evaluated.

    Attributes:
        document: the processed template: after its transforms, functions not evaluated.
        parameters: the values of the parameters, by name.
        context: the values of the pseudo parameters.
        conditions: the value of each condition.
        resources: the resources whose condition holds, by logical id.
        transforms: names of the transforms that were run.
    """

    def __init__(
        self,
        document: Mapping[str, Any],
        parameters: Mapping[str, ParameterValue],
        context: StackContext,
        *,
        transforms: list[str],
    ) -> None:
        self.document = document
        self.parameters = parameters
        self.context = context
        self.transforms = transforms
        self._scope = _static_scope({**document, "Transform": transforms}, parameters, context)
        self._check_values()
        conditions = Conditions(_section(document, "Conditions"), self._scope)
        self._scope = replace(self._scope, is_true=conditions.is_true)
        self.conditions = conditions.all()
        check_rules(_section(document, "Rules"), conditions)
        declared = _section(document, "Resources")
        if not declared:
            raise TemplateError("Template format error: At least one Resources member must be defined.")
        for logical_id, resource in declared.items():
            _check_resource(logical_id, resource)
        active = {name for name, resource in declared.items() if self._is_wanted(resource)}
        self.resources = {
            name: self._resource(name, declared[name], declared.keys(), active) for name in declared if name in active
        }
        self._scope = replace(self._scope, resources=active)
        self._check_references(declared)
        self._needs = {name: self._references_of(resource) for name, resource in self.resources.items()}

    def order(self) -> list[str]:
        """Return the logical ids, each after those that it needs.

        Raises:
            TemplateError: resources depend on each other in a circle.
        """
        try:
            return list(graphlib.TopologicalSorter(self._needs).static_order())
        except graphlib.CycleError as error:
            members = ", ".join(sorted(set(error.args[1])))
            raise TemplateError(f"Circular dependency between resources: [{members}]") from error

    def needs(self, logical_id: str) -> frozenset[str]:
        """Return the resources that a resource refers to or depends on."""
        return self._needs[logical_id]

    def properties(self, logical_id: str, made: Mapping[str, Made], *, dynamic: bool = True) -> dict[str, Any]:
        """Return a resource's properties, evaluated.

        Args:
            logical_id: the resource.
            made: the resources that exist.
            dynamic: whether dynamic references are resolved; otherwise they stay in the texts.

        Raises:
            TemplateError: a function fails, or a resource that it needs is not in `made`.
        """
        return self._properties(logical_id, replace(self._scope, made=made), dynamic)

    def planned(self, logical_id: str, made: Mapping[str, Made]) -> dict[str, Any]:
        """Return a resource's properties for a plan: `Unknown` where they need a resource that is not in `made`.

        Dynamic references stay in the texts, as CloudFormation compares them.

        Raises:
            TemplateError: a function fails.
        """
        return self._properties(logical_id, replace(self._scope, made=made, is_plan=True), dynamic=False)

    def outputs(self, made: Mapping[str, Made], *, is_plan: bool = False) -> list[Output]:
        """Return the outputs whose condition holds.

        Args:
            made: the resources that exist.
            is_plan: whether a value that needs another resource is `Unknown`, instead of an error.

        Raises:
            TemplateError: an output is malformed, is no text, or needs a resource that is not in `made`.
        """
        scope = replace(self._scope, made=made, is_plan=is_plan)
        declared = _section(self.document, "Outputs")
        return [_output(key, each, scope) for key, each in declared.items() if self._is_wanted(_checked(key, each))]

    def imports(self) -> frozenset[str]:
        """Return the names of the exports that resources and outputs import.

        Raises:
            TemplateError: a function fails, or an export does not exist.
        """
        names: set[str] = set()
        scope = replace(self._scope, is_plan=True, imports=names)
        for resource in self.resources.values():
            evaluate(resource.raw_properties, scope)
        for each in _section(self.document, "Outputs").values():
            if self._is_wanted(each):
                evaluate(each.get("Value"), scope)
        return frozenset(names)

    def _properties(self, logical_id: str, scope: Scope, dynamic: bool) -> dict[str, Any]:
        evaluated = evaluate(self.resources[logical_id].raw_properties, scope)
        if not isinstance(evaluated, dict):
            raise TemplateError(f"Template format error: [/Resources/{logical_id}/Properties] must be an object")
        properties: dict[str, Any] = resolve_all(evaluated, self.context.resolve) if dynamic else evaluated
        return properties

    def _is_wanted(self, part: Mapping[str, Any]) -> bool:
        condition = part.get("Condition")
        if condition is None:
            return True
        if not isinstance(condition, str):
            raise TemplateError("Template format error: Condition must be the name of a condition")
        return self._scope.is_true(condition)

    def _resource(self, name: str, declared: Mapping[str, Any], known: Any, active: set[str]) -> Resource:
        depends = declared.get("DependsOn", [])
        depends = [depends] if isinstance(depends, str) else depends
        if not isinstance(depends, list) or not all(isinstance(each, str) for each in depends):
            raise TemplateError("Template format error: DependsOn must be a string or list of strings.")
        missing = [each for each in depends if each not in known]
        if missing:
            raise unresolved(missing, "Resources")
        return Resource(
            logical_id=name,
            type=declared["Type"],
            raw_properties=declared.get("Properties", {}),
            depends_on=tuple(each for each in depends if each in active),
            deletion_policy=self._policy(name, declared, "DeletionPolicy"),
            update_replace_policy=self._policy(name, declared, "UpdateReplacePolicy"),
            metadata=declared.get("Metadata", {}),
        )

    def _policy(self, name: str, declared: Mapping[str, Any], attribute: str) -> str | None:
        policy = declared.get(attribute)
        if policy is not None and policy not in _POLICIES[attribute]:
            raise TemplateError(f"Template error: {attribute} {policy} of resource {name} is not supported")
        if policy == "Snapshot" and declared["Type"] not in _WITH_SNAPSHOTS:
            raise TemplateError(
                f"Template error: resource type {declared['Type']} does not support {attribute} Snapshot"
            )
        return policy

    def _references_of(self, resource: Resource) -> frozenset[str]:
        found = {each.name for each in references(resource.raw_properties, self._scope.is_true)}
        needs = (found & self.resources.keys()) | set(resource.depends_on)
        if resource.logical_id in needs:
            raise TemplateError(f"Circular dependency between resources: [{resource.logical_id}]")
        return frozenset(needs)

    def _check_references(self, declared: Mapping[str, Any]) -> None:
        """Refuse references to undeclared names, also in branches that are not taken."""
        known = declared.keys() | self.parameters.keys() | self.context.pseudo_parameters().keys()
        outputs = _section(self.document, "Outputs")
        for section, parts in (("Resources", declared), ("Outputs", outputs)):
            found = [each for part in parts.values() for each in references(_evaluated_parts(part))]
            for each in found:
                if each.attribute is not None and each.name not in declared and each.function != "Fn::Sub":
                    raise TemplateError(
                        f"Template error: instance of Fn::GetAtt references undefined resource {each.name}"
                    )
            missing = sorted({each.name for each in found if each.name not in known})
            if missing:
                raise unresolved(missing, section)

    def _check_values(self) -> None:
        for section in ("Resources", "Outputs", "Conditions", "Mappings"):
            _refuse_nulls(_section(self.document, section), f"/{section}")
        for name, mapping in self._scope.mappings.items():
            rows = mapping.values() if isinstance(mapping, dict) else [None]
            if not all(isinstance(row, dict) for row in rows):
                raise TemplateError(f"Template format error: Every Mappings member must be a map of maps: {name}")


def _evaluated_parts(part: Any) -> Any:
    """Return the parts of a resource or an output in which functions are evaluated."""
    if not isinstance(part, dict):
        return None
    return [part[key] for key in ("Properties", "Value", "Export") if key in part]


def _refuse_nulls(value: Any, path: str) -> None:
    if value is None:
        raise TemplateError(f"Template format error: [{path}] 'null' values are not allowed in templates")
    if isinstance(value, dict):
        for key, each in value.items():
            if key != "Metadata":
                _refuse_nulls(each, f"{path}/{key}")
    elif isinstance(value, list):
        for index, each in enumerate(value):
            _refuse_nulls(each, f"{path}/{index}")


def _check_resource(logical_id: str, resource: Any) -> None:
    if not _LOGICAL_ID.fullmatch(logical_id):
        raise TemplateError(f"Template format error: Resource name {logical_id} is non alphanumeric.")
    if not isinstance(resource, dict):
        raise TemplateError("Template format error: Any Resources member must be an object.")
    if not isinstance(resource.get("Type"), str):
        raise TemplateError(
            f"Template format error: [/Resources/{logical_id}] Every Resources object must contain a Type member."
        )
    if not isinstance(resource.get("Properties", {}), dict):
        raise TemplateError(f"Template format error: [/Resources/{logical_id}/Properties] must be an object")


def _checked(key: str, output: Any) -> Mapping[str, Any]:
    if not isinstance(output, dict) or "Value" not in output:
        raise TemplateError(f"Template format error: Every Outputs member must contain a Value object: {key}")
    return output


def _output(key: str, declared: Mapping[str, Any], scope: Scope) -> Output:
    value = evaluate(declared["Value"], scope)
    export = declared.get("Export")
    name = evaluate(export.get("Name"), scope) if isinstance(export, dict) else None
    if not is_scalar(value) and not isinstance(value, Unknown):
        raise TemplateError(
            f"Template format error: The Value field of every Outputs member must evaluate to a String: {key}"
        )
    if export is not None and (not isinstance(name, str) or not name):
        raise TemplateError(f"Template format error: Output {key} is malformed. Export needs a Name, a non-empty text")
    text = value if isinstance(value, Unknown) else text_of(value)
    return Output(key, text, declared.get("Description"), name)
