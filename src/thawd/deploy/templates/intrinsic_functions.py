"""Evaluates the intrinsic functions in a part of a template: Ref, Fn::GetAtt, Fn::Sub, Fn::If and others.

The functions whose result depends only on their arguments, such as Fn::Join, are in `context_free_functions`.

Source: CloudFormation template reference, "Intrinsic function reference".
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from thawd.deploy.templates import context_free_functions
from thawd.deploy.templates.references import attribute_of, references, substituted, variables
from thawd.deploy.templates.refusals import TemplateError, unresolved
from thawd.deploy.templates.values import NO_VALUE, Made, StackContext, Unknown, is_scalar, text_of, unknown_in

_EXTENSIONS = "needs the transform AWS::LanguageExtensions: add it to the template's Transform"
_SUB = (
    "Template error: One or more Fn::Sub intrinsic functions don't specify expected arguments. Specify a string as "
    "first argument, and an optional second argument to specify a mapping of values to replace in the string"
)
_FIND_IN_MAP = (
    "Template error: every Fn::FindInMap object requires three parameters, the map name, map key and the attribute for "
    "return value"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The names to which a part of a template may refer, and their values.

    Attributes:
        context: pseudo parameters and look-ups.
        parameters: what ``Ref`` returns for each parameter.
        mappings: the section ``Mappings``.
        is_true: returns whether a condition holds. Raises TemplateError if there is none of that name.
        resources: logical ids of the resources whose condition holds.
        made: the resources that exist.
        is_plan: whether a resource that does not exist yet is `Unknown`; otherwise a reference to it is refused.
        is_extended: whether the template has the transform AWS::LanguageExtensions.
        imports: the set to which the name of each imported export is added.
    """

    context: StackContext
    parameters: Mapping[str, Any]
    mappings: Mapping[str, Any]
    is_true: Callable[[str], bool]
    resources: Container[str] = ()
    made: Mapping[str, Made] = field(default_factory=dict)
    is_plan: bool = False
    is_extended: bool = False
    imports: set[str] = field(default_factory=set)


def evaluate(value: Any, scope: Scope) -> Any:
    """Evaluate a part of a template.

    Returns:
        A JSON value, with `Unknown` in place of values that are not known yet; NO_VALUE if the whole part is left out.

    Raises:
        TemplateError: a function has wrong arguments, or refers to something that does not exist.
    """
    return _Evaluation(scope).value(value)


class _Evaluation:
    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._pseudo = scope.context.pseudo_parameters()
        self._functions: dict[str, Callable[[Any], Any]] = {
            "Ref": self._ref,
            "Fn::GetAtt": self._get_att,
            "Fn::Sub": self._sub,
            "Fn::If": self._if,
            "Fn::FindInMap": self._find_in_map,
            "Fn::GetAZs": self._get_azs,
            "Fn::ImportValue": self._import_value,
        }

    def value(self, value: Any) -> Any:
        if isinstance(value, list):
            return [made for each in value if (made := self.value(each)) is not NO_VALUE]
        if not isinstance(value, dict):
            return value
        function = next(iter(value), "") if len(value) == 1 else None
        if function == "Ref" or (function and function.startswith("Fn::")):
            return self._call(function, value[function])
        odd = next((key for key in value if key.startswith("Fn::")), None)
        if odd:
            raise TemplateError(f"Template format error: {odd} stands beside other keys: {', '.join(value)}")
        return {key: made for key, each in value.items() if (made := self.value(each)) is not NO_VALUE}

    def _call(self, function: str, argument: Any) -> Any:
        own = self._functions.get(function)
        if own:
            return own(argument)
        known = context_free_functions.BY_NAME.get(function)
        if known is None and function in context_free_functions.EXTENDED:
            if not self._scope.is_extended:
                raise TemplateError(f"Template error: {function} {_EXTENSIONS}")
            known = context_free_functions.EXTENDED[function]
        if known is None:
            raise TemplateError(_unsupported(function, [*self._functions, *context_free_functions.BY_NAME]))
        return known(self.value(argument))

    def _ref(self, name: Any) -> Any:
        if not isinstance(name, str):
            raise TemplateError("Template error: every Ref object must have a single String value.")
        if name in self._scope.parameters:
            return self._scope.parameters[name]
        if name in self._pseudo:
            return self._pseudo[name]
        made = self._made(name, name)
        return made if isinstance(made, Unknown) else made.physical_id

    def _made(self, name: str, reference: str) -> Made | Unknown:
        """Return the resource, or `Unknown` in a plan."""
        scope = self._scope
        if name not in scope.resources:
            raise unresolved([name], "Resources")
        made = scope.made.get(name)
        if made is not None:
            return made
        if not scope.is_plan:
            raise TemplateError(f"Resource {name} is referred to before it exists")
        return Unknown(frozenset([reference]))

    def _get_att(self, argument: Any) -> Any:
        named = attribute_of(argument)
        if named is None:
            raise TemplateError(
                "Template error: every Fn::GetAtt object requires two non-empty parameters, the resource name and the "
                "resource attribute"
            )
        resource, attribute = named
        if attribute is None:
            attribute = self.value(argument[1])
            if not isinstance(attribute, str):
                raise TemplateError("Template error: the attribute of Fn::GetAtt must be a text")
        return self._attribute(resource, attribute)

    def _attribute(self, resource: str, attribute: str) -> Any:
        made = self._made(resource, f"{resource}.{attribute}")
        if isinstance(made, Unknown):
            return made
        try:
            return made.attributes[attribute]
        except KeyError:
            value: Any = made.attributes
            for part in attribute.split("."):  # an attribute that is a map: Endpoint.Address
                if not isinstance(value, Mapping) or part not in value:
                    raise TemplateError(
                        f"Template error: resource {resource} does not support attribute type {attribute} in Fn::GetAtt"
                    ) from None
                value = value[part]
            return value

    def _sub(self, argument: Any) -> Any:
        text, local = argument, {}
        if isinstance(argument, list) and len(argument) == 2:
            text, local = argument
        if not isinstance(text, str) or not isinstance(local, dict):
            raise TemplateError(_SUB)
        local = {name: self.value(each) for name, each in local.items()}
        values = {name: self._variable(name, local) for name in variables(text)}
        wrong = next(
            (name for name, each in values.items() if not is_scalar(each) and not isinstance(each, Unknown)), None
        )
        if wrong:
            raise TemplateError(f"Template error: Fn::Sub: ${{{wrong}}} does not resolve to a string")
        return unknown_in(values.values()) or substituted(text, lambda name: text_of(values[name]))

    def _variable(self, name: str, local: Mapping[str, Any]) -> Any:
        if name in local:
            return local[name]
        resource, dot, attribute = name.partition(".")
        return self._attribute(resource, attribute) if dot else self._ref(name)

    def _if(self, argument: Any) -> Any:
        if not isinstance(argument, list) or len(argument) != 3 or not isinstance(argument[0], str):
            raise TemplateError("Template error: Fn::If requires a list argument with three elements")
        return self.value(argument[1 if self._scope.is_true(argument[0]) else 2])

    def _find_in_map(self, argument: Any) -> Any:
        if not isinstance(argument, list) or not 3 <= len(argument) <= 4:
            raise TemplateError(_FIND_IN_MAP)
        default: dict[str, Any] = {}
        if len(argument) == 4:
            if not self._scope.is_extended:
                raise TemplateError(f"Template error: Fn::FindInMap with a default {_EXTENSIONS}")
            if not isinstance(argument[3], dict) or set(argument[3]) != {"DefaultValue"}:
                raise TemplateError(_FIND_IN_MAP)
            default = argument[3]
        keys = [self.value(each) for each in argument[:3]]
        if not all(is_scalar(each) for each in keys):
            raise TemplateError(_FIND_IN_MAP)
        name, first, second = map(text_of, keys)
        found = self._scope.mappings.get(name)
        for key in (first, second):
            found = found.get(key) if isinstance(found, dict) else None
        if found is not None:
            return found
        if default:
            return self.value(default["DefaultValue"])
        if name not in self._scope.mappings:
            raise TemplateError(
                f"Template error: Mapping named '{name}' is not present in the 'Mappings' section of template."
            )
        raise TemplateError(f"Template error: Unable to get mapping for {name}::{first}::{second}")

    def _get_azs(self, argument: Any) -> Any:
        region = self.value(argument)
        if not isinstance(region, str):
            raise TemplateError("Template error: every Fn::GetAZs object must have a String-typed value.")
        return self._scope.context.availability_zones(region or self._scope.context.region)

    def _import_value(self, argument: Any) -> Any:
        if any(each.name in self._scope.resources for each in references(argument)):
            raise TemplateError("Template error: the name in Fn::ImportValue must not depend on a resource")
        name = self.value(argument)
        if not isinstance(name, str) or not name:
            raise TemplateError("Template error: the attribute in Fn::ImportValue must be a non-empty string")
        value = self._scope.context.exports(name)
        if value is None:
            raise TemplateError(f"No export named {name} found.")
        self._scope.imports.add(name)
        return value


def _unsupported(function: str, supported: list[str]) -> str:
    if function == "Fn::Transform":
        return "Template error: Fn::Transform runs a macro, which thawd cannot: write its result into the template"
    if function.startswith("Fn::ForEach"):
        return f"Template error: {function} {_EXTENSIONS}"
    known = ", ".join(supported)
    return f"Template format error: Encountered unsupported function: {function} Supported functions are: [{known}]"
