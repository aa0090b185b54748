"""Makes the OpenAPI document of one typed function.

Source: OpenAPI Specification 3.1.0.
"""

from typing import Any, Dict, List

from thawd.typed.answers import simple
from thawd.typed.kinds import ARRAY, BINARY, IMAGE, JSON, SCALAR, kind_of
from thawd.typed.parameters import Parameter, Parameters
from thawd.typed.schemas import Schemas

_MISTAKES = {
    "type": "object",
    "properties": {
        "detail": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "loc": {"type": "array", "items": {"type": ["string", "integer"]}},
                    "msg": {"type": "string"},
                    "type": {"type": "string"},
                },
            },
        }
    },
}


def media_types(parameter: Parameter) -> List[str]:
    """The content types of a body that is one parameter's value."""
    if parameter.kind == IMAGE:
        return ["image/*"]
    if parameter.kind == ARRAY:
        return ["application/json", "application/x-npy"]
    return ["application/octet-stream" if parameter.kind in BINARY else "application/json"]


def document(function: Any, parameters: Parameters, *, path: str) -> Dict[str, Any]:
    """The document.

    Args:
        function: the function.
        parameters: its parameters.
        path: path of the function's route.
    """
    schemas = Schemas()
    operation: Dict[str, Any] = {
        "operationId": function.__name__,
        "summary": function.__name__.replace("_", " "),
        "responses": {
            "200": {"description": "the result", "content": _result(parameters.returns, schemas)},
            "422": {
                "description": "the request does not fit the function",
                "content": {"application/json": {"schema": _MISTAKES}},
            },
        },
    }
    text = (function.__doc__ or "").strip()
    if text:
        operation["description"] = text
        operation["summary"] = text.splitlines()[0]
    if parameters.body is not None:
        in_query = [each for each in parameters.all if each is not parameters.body]
        operation["parameters"] = [_in_query(each, schemas) for each in in_query]
        schema = schemas.of(parameters.body.annotation)
        content = {kind: {"schema": _of_media(kind, schema)} for kind in media_types(parameters.body)}
        content["multipart/form-data"] = {"schema": _object(parameters, schemas, is_form=True)}
        operation["requestBody"] = {"required": parameters.body.required, "content": content}
    elif parameters.all:
        content = {"application/json": {"schema": _object(parameters, schemas, is_form=False)}}
        content["multipart/form-data"] = {"schema": _object(parameters, schemas, is_form=True)}
        required = any(each.required for each in parameters.all)
        operation["requestBody"] = {"required": required, "content": content}
    made: Dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": function.__name__, "version": "1"},
        "paths": {path: {"post": operation}},
    }
    if schemas.components:
        made["components"] = {"schemas": schemas.components}
    return made


def _object(parameters: Parameters, schemas: Schemas, *, is_form: bool) -> Dict[str, Any]:
    properties = {each.name: _with_default(each, schemas) for each in parameters.all}
    if is_form:
        properties.update(
            {each.name: {"type": "string", "format": "binary"} for each in parameters.all if _is_file(each)}
        )
    required = [each.name for each in parameters.all if each.required]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _is_file(parameter: Parameter) -> bool:
    return parameter.kind in BINARY


def _with_default(parameter: Parameter, schemas: Schemas) -> Dict[str, Any]:
    schema = schemas.of(parameter.annotation)
    if not parameter.required and parameter.kind in (SCALAR, JSON):
        try:
            schema = {**schema, "default": simple(parameter.default)}
        except TypeError:
            pass
    return schema


def _in_query(parameter: Parameter, schemas: Schemas) -> Dict[str, Any]:
    schema = _with_default(parameter, schemas)
    return {"name": parameter.name, "in": "query", "required": parameter.required, "schema": schema}


def _of_media(kind: str, schema: Dict[str, Any]) -> Dict[str, Any]:
    return schema if kind == "application/json" else {"type": "string", "format": "binary"}


def _result(annotation: Any, schemas: Schemas) -> Dict[str, Any]:
    kind = JSON if annotation is None else kind_of(annotation)
    if kind == IMAGE:
        return {"image/png": {}}
    if kind in BINARY and kind != ARRAY:
        return {"application/octet-stream": {}}
    return {"application/json": {"schema": {} if annotation is None else schemas.of(annotation)}}
