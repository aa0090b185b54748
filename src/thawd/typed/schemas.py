"""Makes JSON schemas of annotations.

Source: JSON Schema 2020-12, which OpenAPI 3.1 uses.
"""

import dataclasses
import datetime
import decimal
import enum
import typing
import uuid
from typing import Any, Dict

from thawd.typed import constraints
from thawd.typed.answers import simple
from thawd.typed.conversion import container_of, to_dict, to_list, to_tuple
from thawd.typed.kinds import ARRAY, BINARY, is_model, is_struct, is_union, kind_of, library, unwrapped

_TYPES: Dict[Any, Dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    None: {"type": "null"},
    datetime.datetime: {"type": "string", "format": "date-time"},
    datetime.date: {"type": "string", "format": "date"},
    datetime.time: {"type": "string", "format": "time"},
    uuid.UUID: {"type": "string", "format": "uuid"},
    decimal.Decimal: {"type": "string", "format": "decimal"},
}
_REFERENCES = "#/components/schemas/"


class Schemas:
    """Makes schemas; those of classes with fields are collected, and referred to by name.

    Attributes:
        components: the collected schemas by name.
    """

    def __init__(self) -> None:
        self.components: Dict[str, Any] = {}
        self._names: Dict[Any, str] = {}

    def of(self, annotation: Any) -> Dict[str, Any]:
        """The schema of an annotation; an empty one, which allows everything, if JSON has no such type."""
        annotation, metadata = unwrapped(annotation)
        schema = self._of(annotation)
        limits = constraints.limits_in(metadata)
        return {**schema, **constraints.schema_of(limits, is_text=schema.get("type") == "string")}

    def _of(self, annotation: Any) -> Dict[str, Any]:  # noqa: PLR0911 - a case each
        if annotation in _TYPES:
            return dict(_TYPES[annotation])
        if kind_of(annotation) == ARRAY:
            return {"type": "array", "items": {}, "description": "an array of numbers, as nested lists"}
        if kind_of(annotation) in BINARY:
            return {"type": "string", "contentEncoding": "base64"}
        if is_union(annotation):
            return {"anyOf": [self.of(each) for each in typing.get_args(annotation)]}
        if hasattr(annotation, "__supertype__"):
            return self.of(annotation.__supertype__)
        origin = typing.get_origin(annotation)
        if origin is typing.Literal:
            return {"enum": [simple(each) for each in typing.get_args(annotation)]}
        if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
            return {"enum": [simple(member.value) for member in annotation]}
        container = container_of(origin or annotation)
        if container is not None:
            return self._of_container(container, typing.get_args(annotation))
        return self._of_class(annotation)

    def _of_container(self, container: Any, arguments: Any) -> Dict[str, Any]:
        if container is to_dict:
            return {"type": "object", "additionalProperties": self.of(arguments[1]) if len(arguments) == 2 else {}}
        if container is to_tuple and arguments and arguments[-1] is not Ellipsis:
            size = len(arguments)
            return {"type": "array", "prefixItems": list(map(self.of, arguments)), "minItems": size, "maxItems": size}
        schema = {"type": "array", "items": self.of(arguments[0]) if arguments else {}}
        return schema if container in (to_list, to_tuple) else {**schema, "uniqueItems": True}

    def _of_class(self, annotation: Any) -> Dict[str, Any]:
        if is_model(annotation):
            return self._of_library(annotation.model_json_schema(ref_template=_REFERENCES + "{model}"))
        if is_struct(annotation):
            [schema], components = library("msgspec").json.schema_components(
                [annotation], ref_template=_REFERENCES + "{name}"
            )
            return self._with_components(dict(schema), components)
        fields = _fields(annotation)
        if fields is None:
            return {}
        if annotation not in self._names:
            name = annotation.__name__
            while name in self.components:
                name += "_"
            self._names[annotation] = name
            self.components[name] = {}  # a class may contain itself
            hints, required = fields
            self.components[name] = {
                "type": "object",
                "title": annotation.__name__,
                "properties": {key: self.of(hint) for key, hint in hints.items()},
                "required": required,
                "additionalProperties": False,
            }
        return {"$ref": _REFERENCES + self._names[annotation]}

    def _of_library(self, schema: Dict[str, Any]) -> Dict[str, Any]:
        components = schema.pop("$defs", {})
        name = schema.get("title")
        if not isinstance(name, str) or not name.isidentifier() or name in components:
            return self._with_components(schema, components)
        return self._with_components({"$ref": _REFERENCES + name}, {**components, name: schema})

    def _with_components(self, schema: Dict[str, Any], components: Dict[str, Any]) -> Dict[str, Any]:
        """Collect components that a library has made, and return the schema that refers to them.

        If a different schema with the same name is there already, the new one gets another name. Then the schemas that
        refer to it have changed, too.
        """
        names = {name: name for name in components}
        settled = False
        while not settled:
            settled = True
            for name, component in components.items():
                made = _renamed(component, names)
                others = {names[other] for other in components if other != name}
                while self.components.get(names[name], made) != made or names[name] in others:
                    names[name] += "_"
                    settled = False
                    made = _renamed(component, names)
        self.components.update({names[name]: _renamed(component, names) for name, component in components.items()})
        renamed: Dict[str, Any] = _renamed(schema, names)
        return renamed


def _renamed(schema: Any, names: Dict[str, str]) -> Any:
    """A schema with other names in its references; also in the mapping of a discriminator."""
    if isinstance(schema, list):
        return [_renamed(each, names) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _renamed(value, names) for key, value in schema.items()}
    if isinstance(made.get("$ref"), str):
        made["$ref"] = _reference(made["$ref"], names)
    mapping = made.get("mapping")
    if isinstance(mapping, dict) and "propertyName" in made:
        made["mapping"] = {
            key: _reference(value, names) if isinstance(value, str) else value for key, value in mapping.items()
        }
    return made


def _reference(reference: str, names: Dict[str, str]) -> str:
    name = reference[len(_REFERENCES) :]
    return _REFERENCES + names.get(name, name) if reference.startswith(_REFERENCES) else reference


def _fields(annotation: Any) -> Any:
    """Types of a class's fields by name, and the names of the required ones; None: it has no fields."""
    if not isinstance(annotation, type):
        return None
    hints = typing.get_type_hints(annotation, include_extras=True)
    if hasattr(annotation, "__required_keys__"):
        return hints, sorted(annotation.__required_keys__, key=list(hints).index)
    if hasattr(annotation, "_field_defaults"):
        return hints, [name for name in hints if name not in annotation._field_defaults]
    if dataclasses.is_dataclass(annotation):
        missing = dataclasses.MISSING
        fields = [field for field in dataclasses.fields(annotation) if field.init]
        required = [each.name for each in fields if each.default is missing and each.default_factory is missing]
        return {each.name: hints[each.name] for each in fields}, required
    return None
