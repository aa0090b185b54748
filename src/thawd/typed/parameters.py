"""What a typed function takes, and from which part of a request each argument comes.

- A parameter whose value is no scalar (an object, a list, an array, an image, bytes, a file) is the request's body,
  if it is the only one of that sort. Scalars then come from the query string.
- Otherwise the body is a JSON object with a field for each parameter.
- Fields of a form, multipart or not, and of the query string can stand for any scalar; parts of a multipart body for
  any parameter.
"""

import io
import json
import typing
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple
from urllib.parse import parse_qsl

from thawd.typed import bodies
from thawd.typed.conversion import Invalid, Location, Mistake, all_unknown, container_of, convert, to_dict
from thawd.typed.kinds import ARRAY, BYTES, FILE, IMAGE, JSON, SCALAR, kind_of, library, plain, unwrapped

_FORM, _MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
_NPY = b"\x93NUMPY"
_TOO_DEEP = "is nested too deeply"
_JSON_AS_FORM = "is JSON, but the request says it is a form; send it with the header content-type: application/json"


class Parameter(NamedTuple):
    """A parameter of a typed function.

    Attributes:
        name: its name.
        annotation: its type.
        kind: see `thawd.typed.kinds`.
        required: whether it has no default.
        default: its default.
    """

    name: str
    annotation: Any
    kind: str
    required: bool
    default: Any


class Unsupported(Exception):
    """The body's content type is none that the function takes; the message says which ones it takes."""


class Parameters:
    """The parameters of one function.

    Args:
        function: the function.

    Raises:
        TypeError: a parameter has no annotation, or takes any number of arguments.

    Attributes:
        all: the parameters, in order.
        body: the parameter that is the body as a whole; None: the body is a JSON object or a form.
        returns: the annotation of the result; None: there is none.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        hints = typing.get_type_hints(function, include_extras=True)
        self.returns = hints.get("return")
        self.all = tuple(_parameters(function, hints))
        larger = [each for each in self.all if each.kind != SCALAR]
        self.body: Optional[Parameter] = larger[0] if len(larger) == 1 else None
        self._names = [each.name for each in self.all]
        self._way_out = ""
        if self.body is not None and self.body.kind == JSON:
            self._way_out = "send %s as a JSON body" % self.body.name

    def of_event(self, event: Any) -> Dict[str, Any]:
        """The arguments in an event that is no HTTP request: an object with a field for each parameter.

        Raises:
            Invalid: the event does not fit.
        """
        if self.body is not None and not (isinstance(event, dict) and self.body.name in event):
            event = {self.body.name: event}
        try:
            return self._of_object(event, ("event",), {})
        except RecursionError:
            raise Invalid(Mistake(("event",), _TOO_DEEP, "json")) from None

    def of_request(self, query: str, body: bytes, content_type: str) -> Dict[str, Any]:
        """The arguments in a request.

        Args:
            query: percent-encoded query string.
            body: the body.
            content_type: value of the header; empty if there is none.

        Raises:
            Invalid: the request does not fit.
            Unsupported: the body has a type that the function does not take (415).
        """
        texts: Dict[str, List[str]] = {}
        for name, text in parse_qsl(query, keep_blank_values=True):
            texts.setdefault(name, []).append(text)
        media_type = content_type.split(";", 1)[0].strip().lower()
        try:
            if media_type in (_FORM, _MULTIPART) and body:
                return self._of_form(body, content_type, media_type, texts)
            if self.body is None:
                value = _json(body, media_type) if body else {}
                return self._of_object(value, ("body",), texts)
            return self._of_body(self.body, body, media_type, texts)
        except RecursionError:
            raise Invalid(Mistake(("body",), _TOO_DEEP, "json")) from None

    def _of_body(
        self, parameter: Parameter, body: bytes, media_type: str, texts: Dict[str, List[str]]
    ) -> Dict[str, Any]:
        arguments, mistakes = self._of_texts(texts, "query")
        if not body and (parameter.name in arguments or not parameter.required):
            pass
        elif not body and parameter.kind not in (BYTES, FILE):
            mistakes.append(Mistake(("body",), "is missing", "missing"))
        else:
            try:
                arguments[parameter.name] = _value_of_body(parameter, body, media_type, ("body",))
            except Invalid as invalid:
                mistakes += invalid.mistakes
        return self._complete(arguments, mistakes, ("query",))

    def _of_object(self, value: Any, loc: Location, texts: Dict[str, List[str]]) -> Dict[str, Any]:
        if not isinstance(value, dict):
            wanted = "a JSON object with the fields %s" % (", ".join(self._names) or "none")
            raise Invalid(Mistake(loc, "must be %s" % wanted, "type"))
        arguments, mistakes = self._of_texts(texts, "query")
        mistakes += all_unknown(value, self._names, loc)
        for parameter in self.all:
            if parameter.name in value:
                try:
                    arguments[parameter.name] = _value_of_json(parameter, value[parameter.name], (*loc, parameter.name))
                except Invalid as invalid:
                    mistakes += invalid.mistakes
        return self._complete(arguments, mistakes, loc)

    def _of_form(self, body: bytes, content_type: str, media_type: str, texts: Dict[str, List[str]]) -> Dict[str, Any]:
        try:
            fields = bodies.urlencoded(body) if media_type == _FORM else bodies.multipart(body, content_type)
        except bodies.BodyError as error:
            raise Invalid(Mistake(("body",), str(error), "form")) from error
        arguments, mistakes = self._of_texts(texts, "query")
        mistakes += all_unknown(fields, self._names, ("form",), self._way_out)
        for parameter in self.all:
            if parameter.name in fields:
                try:
                    arguments[parameter.name] = _value_of_field(parameter, fields[parameter.name])
                except Invalid as invalid:
                    mistakes += invalid.mistakes
        if mistakes and media_type == _FORM and _is_json(body):
            raise Invalid(Mistake(("body",), _JSON_AS_FORM, "form"))
        return self._complete(arguments, mistakes, ("form",))

    def _of_texts(self, texts: Dict[str, List[str]], where: str) -> Tuple[Dict[str, Any], List[Mistake]]:
        arguments: Dict[str, Any] = {}
        mistakes: List[Mistake] = []
        by_name = {each.name: each for each in self.all if each.kind in (SCALAR, JSON)}
        mistakes += all_unknown(texts, by_name, (where,), self._way_out)
        for name, given in texts.items():
            parameter = by_name.get(name)
            if parameter is None:
                continue
            value: Any = given[-1]
            is_text = True
            if parameter.kind == JSON:
                value, is_text = _list_or_json(parameter, given)
            try:
                arguments[name] = convert(value, parameter.annotation, (where, name), is_text=is_text)
            except Invalid as invalid:
                mistakes += invalid.mistakes
        return arguments, mistakes

    def _complete(self, arguments: Dict[str, Any], mistakes: List[Mistake], loc: Location) -> Dict[str, Any]:
        named = {each.loc[1] for each in mistakes if len(each.loc) > 1}
        in_body = {self.body.name} if self.body is not None and loc == ("query",) else set()
        for parameter in self.all:
            name = parameter.name
            if name not in arguments and parameter.required and name not in named and name not in in_body:
                mistakes.append(Mistake((*loc, name), "is missing", "missing"))
        if mistakes:
            raise Invalid(*mistakes)
        return arguments


def _parameters(function: Any, hints: Dict[str, Any]) -> List[Parameter]:
    code = function.__code__
    if code.co_flags & 0x0C:  # *args, **kwargs
        raise TypeError("a typed function must name its parameters; %s has * or **" % function.__name__)
    count = code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames[:count]
    defaults = dict(zip(names[: code.co_argcount][::-1], (function.__defaults__ or ())[::-1]))
    defaults.update(function.__kwdefaults__ or {})
    found = []
    for name in names:
        if name not in hints:
            raise TypeError(
                "the parameter %s of %s needs an annotation, such as %s: str" % (name, function.__name__, name)
            )
        required = name not in defaults
        found.append(Parameter(name, hints[name], kind_of(hints[name]), required, defaults.get(name)))
    return found


def _value_of_body(parameter: Parameter, body: bytes, media_type: str, loc: Location) -> Any:
    if parameter.kind == JSON:
        return convert(_json(body, media_type), parameter.annotation, loc)
    is_json = media_type == "application/json" or media_type.endswith("+json")
    if parameter.kind == ARRAY and (is_json or (not media_type and not body.startswith(_NPY))):
        return _value_of_json(parameter, _json(body, media_type), loc)
    if is_json and parameter.kind == IMAGE:
        raise Unsupported("the body must be an image, such as image/png, and not JSON")
    return _binary(parameter, body, loc)


def _value_of_json(parameter: Parameter, value: Any, loc: Location) -> Any:
    """The argument for a value in a JSON object. Bytes are Base64, arrays lists."""
    if parameter.kind in (SCALAR, JSON):
        return convert(value, parameter.annotation, loc)
    if value is None and plain(parameter.annotation) is not unwrapped(parameter.annotation)[0]:
        return None
    if parameter.kind == ARRAY:
        try:
            made = library("numpy").asarray(value)
            return _as_annotated(parameter.annotation, made)
        except (ValueError, TypeError) as error:
            raise Invalid(Mistake(loc, "is no array of numbers: %s" % error, "array")) from error
    import base64

    try:
        return _binary(parameter, base64.b64decode(value, validate=True), loc)
    except (ValueError, TypeError):
        raise Invalid(Mistake(loc, "must be Base64 text", "base64")) from None


def _is_json(body: bytes) -> bool:
    """Whether a body is a JSON object or array: curl says of each body that it is a form, if not told otherwise."""
    if body.lstrip()[:1] not in (b"{", b"["):
        return False
    try:
        json.loads(body)
    except ValueError:  # UnicodeDecodeError, too
        return False
    return True


def _value_of_field(parameter: Parameter, parts: List[bodies.Part]) -> Any:
    loc = ("form", parameter.name)
    part = parts[-1]
    if parameter.kind == SCALAR:
        return convert(_text(part.data, loc), parameter.annotation, loc, is_text=True)
    if parameter.kind == JSON:
        value, is_text = _list_or_json(parameter, [_text(each.data, loc) for each in parts])
        return convert(value, parameter.annotation, loc, is_text=is_text)
    if parameter.kind == ARRAY and not part.data.startswith(_NPY):
        return _value_of_json(parameter, _json(part.data, "application/json"), loc)
    return _binary(parameter, part.data, loc)


def _binary(parameter: Parameter, data: bytes, loc: Location) -> Any:
    if parameter.kind == BYTES:
        return bytearray(data) if plain(parameter.annotation) is bytearray else data
    if parameter.kind == FILE:
        return io.BytesIO(data)
    if parameter.kind == ARRAY:
        return _npy(parameter.annotation, data, loc)
    pillow = library("PIL.Image")
    try:
        image = pillow.open(io.BytesIO(data))
        image.load()
    except Exception as error:  # Pillow fails with many kinds of errors for damaged files
        raise Invalid(Mistake(loc, "is no image that Pillow can read: %s" % error, "image")) from error
    return image


def _npy(annotation: Any, data: bytes, loc: Location) -> Any:
    if not data.startswith(_NPY):  # NumPy would also open other files, for example archives
        raise Invalid(Mistake(loc, "is no .npy file", "array"))
    try:
        array = library("numpy").load(io.BytesIO(data), allow_pickle=False)
    except Exception as error:  # NumPy fails with many kinds of errors for damaged files
        raise Invalid(Mistake(loc, "is no .npy file: %s" % error, "array")) from error
    try:
        return _as_annotated(annotation, array)
    except ValueError as error:
        raise Invalid(Mistake(loc, "is no array that fits: %s" % error, "array")) from error


def _as_annotated(annotation: Any, array: Any) -> Any:
    """The array with the element type in ``numpy.typing.NDArray[...]``, if the annotation names one.

    Raises:
        ValueError: the elements are texts or objects, or the element type cannot represent them.
    """
    if array.dtype.kind not in "biufc":
        raise ValueError("its elements are not numbers")
    arguments = typing.get_args(plain(annotation))
    element = typing.get_args(arguments[-1]) if arguments else ()
    wanted = element[0] if element else None
    return _cast(array, wanted) if isinstance(wanted, type) else array


def _cast(array: Any, wanted: Any) -> Any:
    """The array with another element type. Only floating-point numbers are rounded; NumPy would wrap 300 to 44."""
    numpy = library("numpy")
    try:
        with numpy.errstate(over="raise", invalid="ignore"):
            made = array.astype(wanted, copy=False)
    except FloatingPointError:
        raise ValueError("an element is too large for the type %s" % wanted.__name__) from None
    rounds = made.dtype.kind in "fc" and numpy.can_cast(array.dtype, made.dtype, "same_kind")
    if not rounds and made.dtype != array.dtype and not numpy.array_equal(made, array):
        raise ValueError("an element does not fit into the type %s" % wanted.__name__)
    return made


def _list_or_json(parameter: Parameter, given: List[str]) -> Tuple[Any, bool]:
    """The value of a field whose type is no scalar: that of one JSON text, or else a list of all texts.

    Also returns whether it is a list of texts. If the type is a list, a single text stands for a list of one, unless
    it is a list in JSON.
    """
    if len(given) > 1:
        return given, True
    try:
        value = json.loads(given[0], parse_constant=_refuse_constant)
    except ValueError:
        return given, True
    annotation = plain(parameter.annotation)
    is_list = container_of(typing.get_origin(annotation) or annotation) not in (None, to_dict)
    return (given, True) if is_list and value is not None and not isinstance(value, list) else (value, False)


def _text(data: bytes, loc: Location) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Invalid(Mistake(loc, "is not text in UTF-8", "text")) from None


def _json(body: bytes, media_type: str) -> Any:
    known = ("", "application/json", "text/plain", "text/json")
    if media_type not in known and not media_type.endswith("+json"):
        raise Unsupported("the body must be JSON (content-type: application/json), not %s" % media_type)
    try:
        return json.loads(body.decode(), parse_constant=_refuse_constant)
    except ValueError as error:
        raise Invalid(Mistake(("body",), "is not JSON: %s" % error, "json")) from None


def _refuse_constant(name: str) -> Any:
    raise ValueError("%s is no JSON" % name)
