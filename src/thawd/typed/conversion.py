"""Converts JSON values, and texts of query strings and forms, to annotated types; collects every mistake.

Dataclasses, named tuples, typed dictionaries, enumerations and the types of `typing` are converted here. A model of
pydantic and a struct of msgspec are converted by their libraries. JSON is taken strictly: a text is no number. A whole
number is accepted for a float.
"""

import dataclasses
import datetime
import decimal
import difflib
import enum
import functools
import itertools
import math
import re
import typing
import uuid
from typing import Any, Callable, Dict, Iterable, List, Tuple, Union

from thawd.typed import constraints
from thawd.typed.kinds import is_model, is_struct, is_union, library, unwrapped

Location = Tuple[Union[str, int], ...]
# Most mistakes of one request that are listed: the answer to a list of a million wrong numbers must not be megabytes.
MOST_MISTAKES = 100
_NAMES = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
_PARSERS: Dict[Any, Callable[[str], Any]] = {
    datetime.datetime: lambda text: datetime.datetime.fromisoformat(_zoned(text)),
    datetime.date: datetime.date.fromisoformat,
    datetime.time: datetime.time.fromisoformat,
    uuid.UUID: uuid.UUID,
    decimal.Decimal: lambda text: _finite(decimal.Decimal(text)),
}
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


class Mistake(typing.NamedTuple):
    """A mistake in a request.

    Attributes:
        loc: where: ``body``, ``query`` or ``form``, then the names and positions that lead to the value.
        msg: what is wrong, with the value.
        type: a word for programs.
    """

    loc: Location
    msg: str
    type: str


class Invalid(Exception):
    """A value does not fit its annotation.

    Attributes:
        mistakes: the mistakes in it, at most `MOST_MISTAKES` and one that says that there are more.
    """

    def __init__(self, *mistakes: Mistake) -> None:
        if len(mistakes) > MOST_MISTAKES:
            more = Mistake(mistakes[0].loc[:1], "has more mistakes than these", "more")
            mistakes = (*[each for each in mistakes if each.type != "more"][:MOST_MISTAKES], more)
        super().__init__("; ".join("%s: %s" % (".".join(map(str, each.loc)), each.msg) for each in mistakes))
        self.mistakes = mistakes


def convert(value: Any, annotation: Any, loc: Location, *, is_text: bool = False) -> Any:
    """Convert a value to an annotated type.

    Args:
        value: a decoded JSON value, or a text.
        annotation: the type.
        loc: where the value is, for mistakes.
        is_text: whether the value is a text of a query string or form, or a list of such texts, so that texts are
            parsed as numbers.

    Raises:
        Invalid: the value does not fit.
    """
    annotation, metadata = unwrapped(annotation)
    converted = _convert(value, annotation, loc, is_text)
    if metadata:
        try:
            wrong = constraints.violation(converted, constraints.limits_in(metadata))
        except (TypeError, ArithmeticError):
            # Perhaps the limit is for another type of a union. A time without a zone cannot be compared with one with.
            wrong = None if is_union(annotation) else "cannot be compared with its limits"
        if wrong:
            raise Invalid(Mistake(loc, "is %s, but %s" % (_shown(value), wrong), "limit"))
    return converted


def _convert(value: Any, annotation: Any, loc: Location, is_text: bool) -> Any:  # noqa: PLR0911 - a case each
    if annotation is Any or annotation is object or isinstance(annotation, typing.TypeVar):
        return value
    if is_union(annotation):
        return _union(value, typing.get_args(annotation), loc, is_text)
    if hasattr(annotation, "__supertype__"):  # NewType
        return convert(value, annotation.__supertype__, loc, is_text=is_text)
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return _literal(value, typing.get_args(annotation), loc, is_text)
    if is_model(annotation):
        return _by_pydantic(value, annotation, loc)
    if is_struct(annotation):
        return _by_msgspec(value, annotation, loc)
    container = container_of(origin or annotation)
    if container is not None:
        return container(value, typing.get_args(annotation), loc, is_text)
    return _single(value, annotation, loc, is_text)


def _single(value: Any, annotation: Any, loc: Location, is_text: bool) -> Any:  # noqa: PLR0911 - a case each
    if annotation is None or annotation is type(None):
        if value is None:
            return None
        raise _wrong(value, "null", loc)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _enumeration(value, annotation, loc, is_text)
    if annotation in _NAMES:
        return _primitive(value, annotation, loc, is_text)
    if annotation in _PARSERS:
        try:
            return _PARSERS[annotation](value if isinstance(value, str) else _number_text(value, annotation))
        except (ValueError, TypeError, ArithmeticError):
            raise _wrong(value, "a %s, as text" % annotation.__name__, loc) from None
    if hasattr(annotation, "__required_keys__"):
        return _object(value, _hints(annotation), dict, loc, optional=annotation.__optional_keys__)
    if isinstance(annotation, type) and issubclass(annotation, tuple) and hasattr(annotation, "_fields"):
        if isinstance(value, list) and len(value) <= len(annotation._fields):
            value = dict(zip(annotation._fields, value))
        return _object(value, _hints(annotation), annotation, loc, optional=getattr(annotation, "_field_defaults", ()))
    if dataclasses.is_dataclass(annotation):
        fields = [field for field in dataclasses.fields(annotation) if field.init]
        missing = dataclasses.MISSING
        optional = [each.name for each in fields if not (each.default is missing and each.default_factory is missing)]
        hints = _hints(annotation)
        return _object(value, {each.name: hints[each.name] for each in fields}, annotation, loc, optional=optional)
    if isinstance(annotation, type) and isinstance(value, annotation):
        return value
    raise Invalid(Mistake(loc, "the annotation %r has no form in JSON" % (annotation,), "annotation"))


def _hints(annotation: Any) -> Dict[str, Any]:
    return typing.get_type_hints(annotation, include_extras=True)


def _object(value: Any, hints: Dict[str, Any], make: Any, loc: Location, *, optional: Any) -> Any:
    """Make an object with named fields from a JSON object."""
    if not isinstance(value, dict):
        raise _wrong(value, "a JSON object with the fields %s" % ", ".join(hints), loc)
    mistakes = all_unknown(value, hints, loc)
    fields = {}
    for name, annotation in hints.items():
        if name not in value:
            if name not in optional:
                mistakes.append(Mistake((*loc, name), "is missing", "missing"))
            continue
        try:
            fields[name] = convert(value[name], annotation, (*loc, name))
        except Invalid as invalid:
            mistakes += invalid.mistakes
    if mistakes:
        raise Invalid(*mistakes)
    try:
        return make(**fields)
    except (ValueError, TypeError) as error:  # a check in __post_init__
        raise Invalid(Mistake(loc, str(error), "value")) from error


def all_unknown(given: Iterable[str], names: Any, loc: Location, way_out: str = "") -> List[Mistake]:
    """The mistakes that fields have unknown names, at most `MOST_MISTAKES` and one.

    Args:
        given: the names in the request.
        names: the known names.
        loc: where the fields are.
        way_out: what the message adds if a name resembles none of the known ones.
    """
    wrong = itertools.islice((name for name in given if name not in names), MOST_MISTAKES + 1)
    return [unknown(name, names, loc, way_out) for name in wrong]


def unknown(name: str, names: Any, loc: Location, way_out: str = "") -> Mistake:
    """The mistake that a field has an unknown name; see `all_unknown`."""
    close = difflib.get_close_matches(name, list(names), n=1)
    hint = "did you mean %s?" % close[0] if close else "the fields are %s" % (", ".join(names) or "none")
    hint = hint if close or not way_out else "%s; %s" % (hint, way_out)
    return Mistake((*loc, name), "is an unknown field; %s" % hint, "unknown")


def _union(value: Any, alternatives: Any, loc: Location, is_text: bool) -> Any:
    if value is None and type(None) in alternatives:
        return None
    others = [each for each in alternatives if each is not type(None)]
    # A type that the value has already wins over one to which it can be converted.
    others.sort(key=lambda each: not (each in _NAMES and type(value) is each) or (is_text and each is str))
    mistakes: List[Mistake] = []
    for alternative in others:
        try:
            return convert(value, alternative, loc, is_text=is_text)
        except Invalid as invalid:
            mistakes += invalid.mistakes
    raise Invalid(*mistakes)


def _literal(value: Any, allowed: Any, loc: Location, is_text: bool) -> Any:
    for each in allowed:
        if (type(value) is type(each) and value == each) or (is_text and value == str(each)):
            return each
    raise _wrong(value, "one of %s" % ", ".join(map(_shown, allowed)), loc)


def _enumeration(value: Any, annotation: Any, loc: Location, is_text: bool) -> Any:
    for member in annotation:
        if (type(member.value) is type(value) and member.value == value) or (is_text and str(member.value) == value):
            return member
    raise _wrong(value, "one of %s" % ", ".join(_shown(member.value) for member in annotation), loc)


def _primitive(value: Any, annotation: Any, loc: Location, is_text: bool) -> Any:
    if is_text and isinstance(value, str) and annotation is not str:
        parsed = _parsed(value, annotation)
        if parsed is not None:
            return parsed
    elif type(value) is annotation and (annotation is not float or math.isfinite(value)):
        return value
    elif annotation is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            pass
    elif annotation is int and type(value) is float and value.is_integer():
        return int(value)
    raise _wrong(value, _NAMES[annotation], loc)


def _parsed(text: str, annotation: Any) -> Any:
    if annotation is bool:
        lower = text.strip().lower()
        return True if lower in _TRUE else False if lower in _FALSE else None
    try:
        number = annotation(text)
    except ValueError:
        return None
    return number if annotation is int or math.isfinite(number) else None


def container_of(origin: Any) -> Any:
    """What converts a container, such as `list`, by its class; None: it is no container."""
    import collections.abc

    if origin in (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection):
        return to_list
    if origin in (set, frozenset, collections.abc.Set):
        return functools.partial(_set, frozenset if origin is frozenset else set)
    if origin is tuple:
        return to_tuple
    if origin in (dict, collections.abc.Mapping, collections.abc.MutableMapping):
        return to_dict
    return None


def to_list(value: Any, arguments: Any, loc: Location, is_text: bool = False) -> List[Any]:
    """Convert a list; `arguments` are those of the annotation."""
    if not isinstance(value, list):
        raise _wrong(value, "a list", loc)
    return _each(value, [arguments[0] if arguments else Any] * len(value), loc, is_text=is_text)


def _set(make: Any, value: Any, arguments: Any, loc: Location, is_text: bool = False) -> Any:
    items = to_list(value, arguments, loc, is_text)
    try:
        return make(items)
    except TypeError:
        raise Invalid(Mistake(loc, "is a set, whose items must not be lists or objects", "set")) from None


def to_tuple(value: Any, arguments: Any, loc: Location, is_text: bool = False) -> Tuple[Any, ...]:
    """Convert a tuple, from a list."""
    if not isinstance(value, list):
        raise _wrong(value, "a list", loc)
    if not arguments:
        return tuple(value)
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(_each(value, [arguments[0]] * len(value), loc, is_text=is_text))
    if len(value) != len(arguments):
        raise Invalid(Mistake(loc, "has %d items, but must have %d" % (len(value), len(arguments)), "length"))
    return tuple(_each(value, arguments, loc, is_text=is_text))


def to_dict(value: Any, arguments: Any, loc: Location, is_text: bool = False) -> Dict[Any, Any]:
    """Convert a dictionary; its keys may have any type that a text can be parsed as."""
    if not isinstance(value, dict):
        raise _wrong(value, "a JSON object", loc)
    if not arguments:
        return value
    keys = [convert(key, arguments[0], (*loc, key), is_text=True) for key in value]
    paired = zip(keys, _each(list(value.values()), [arguments[1]] * len(value), loc, names=list(value)))
    return dict(paired)


def _each(values: Any, annotations: Any, loc: Location, *, names: Any = None, is_text: bool = False) -> List[Any]:
    made, mistakes = [], []  # type: ignore[var-annotated]
    for index, (value, annotation) in enumerate(zip(values, annotations)):
        try:
            place = (*loc, index if names is None else names[index])
            made.append(convert(value, annotation, place, is_text=is_text))
        except Invalid as invalid:
            mistakes += invalid.mistakes
            if len(mistakes) > MOST_MISTAKES:
                break
    if mistakes:
        raise Invalid(*mistakes)
    return made


def _by_pydantic(value: Any, annotation: Any, loc: Location) -> Any:
    try:
        return annotation.model_validate(value)
    except ValueError as error:
        errors = getattr(error, "errors", None)
        if errors is None:
            raise Invalid(Mistake(loc, str(error), "value")) from error
        found = [Mistake((*loc, *each["loc"]), each["msg"], each["type"]) for each in errors()[: MOST_MISTAKES + 1]]
        raise Invalid(*found) from error


def _by_msgspec(value: Any, annotation: Any, loc: Location) -> Any:
    msgspec = library("msgspec")

    try:
        return msgspec.convert(value, annotation)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        names = tuple(int(name) if name.isdigit() else name for name in re.findall(r"[^.\[\]`]+", path))
        raise Invalid(Mistake((*loc, *names), text, "value")) from error


def _zoned(text: str) -> str:
    return text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text  # before Python 3.11, Z is not known


def _finite(number: decimal.Decimal) -> decimal.Decimal:
    if not number.is_finite():
        raise ValueError
    return number


def _number_text(value: Any, annotation: Any) -> str:
    if annotation is decimal.Decimal and type(value) in (int, float):
        return repr(value)
    raise TypeError


def _wrong(value: Any, wanted: str, loc: Location) -> Invalid:
    return Invalid(Mistake(loc, "is %s, but must be %s" % (_shown(value), wanted), "type"))


def _shown(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
