"""JSON values and texts become values of annotated types, or every mistake in them is reported."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import uuid
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import jsonschema
import msgspec
import pydantic
import pytest

from thawd.typed import answers
from thawd.typed.answers import simple
from thawd.typed.conversion import Invalid, convert
from thawd.typed.schemas import Schemas


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0


@dataclasses.dataclass
class Line:
    points: list[Point]
    colour: Colour | None = None
    next: Line | None = None


class Pair(NamedTuple):
    left: int
    right: str = "r"


class Options(TypedDict, total=False):
    deep: bool


class Model(pydantic.BaseModel):
    size: int = pydantic.Field(ge=1)


class Struct(msgspec.Struct):
    size: int


ROUND_TRIPS: list[tuple[Any, Any, Any]] = [
    (int, 3, 3),
    (int, 3.0, 3),
    (float, 3, 3.0),
    (str, "é", "é"),
    (bool, True, True),
    (int | None, None, None),
    (int | str, "3", "3"),
    (Literal["a", 1], 1, 1),
    (Colour, "red", Colour.RED),
    (list[int], [1, 2], [1, 2]),
    (tuple[int, str], [1, "a"], (1, "a")),
    (tuple[int, ...], [1, 2, 3], (1, 2, 3)),
    (set[int], [1, 1], {1}),
    (dict[str, list[float]], {"a": [1]}, {"a": [1.0]}),
    (dict[int, str], {"1": "a"}, {1: "a"}),
    (datetime.datetime, "2026-01-02T03:04:05Z", datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)),
    (datetime.date, "2026-01-02", datetime.date(2026, 1, 2)),
    (uuid.UUID, "0" * 32, uuid.UUID(int=0)),
    (Point, {"x": 1}, Point(1.0)),
    (Line, {"points": [{"x": 1, "y": 2}], "colour": "blue"}, Line([Point(1.0, 2.0)], Colour.BLUE)),
    (Line, {"points": [], "next": {"points": []}}, Line([], None, Line([]))),
    (Pair, {"left": 1}, Pair(1)),
    (Pair, [1, "b"], Pair(1, "b")),
    (Options, {}, {}),
    (Model, {"size": 2}, Model(size=2)),
    (Struct, {"size": 2}, Struct(2)),
    (list[Struct], [{"size": 2}], [Struct(2)]),
    (Annotated[int, pydantic.Field(ge=1)], 1, 1),
    (Annotated[decimal.Decimal, pydantic.Field(multiple_of=decimal.Decimal("0.1"))], "0.3", decimal.Decimal("0.3")),
    (Any, {"a": [None]}, {"a": [None]}),
]


@pytest.mark.parametrize(("annotation", "value", "wanted"), ROUND_TRIPS)
def test_a_value_that_fits_is_converted(annotation: Any, value: Any, wanted: Any) -> None:
    converted = convert(value, annotation, ("body",))
    assert (converted, type(converted)) == (wanted, type(wanted))


@pytest.mark.parametrize(
    ("annotation", "value", "locations"),
    [
        (int, "3", [()]),
        (int, True, [()]),
        (int, 3.5, [()]),
        (float, "x", [()]),
        (float, 10**400, [()]),
        (str, 3, [()]),
        (bool, 1, [()]),
        (Literal[1], True, [()]),
        (Colour, "green", [()]),
        (list[int], [1, "a", None], [(1,), (2,)]),
        (tuple[int, str], [1], [()]),
        (dict[str, int], {"a": "b"}, [("a",)]),
        (datetime.date, "yesterday", [()]),
        (Point, {"y": "a", "z": 1}, [("z",), ("x",), ("y",)]),
        (Point, [1, 2], [()]),
        (Line, {"points": [{"x": 1}, {}]}, [("points", 1, "x")]),
        (Pair, [1, 2, 3], [()]),
        (Model, {"size": 0}, [("size",)]),
        (list[Model], [{"size": "a"}], [(0, "size")]),
        (Struct, {"size": "a"}, [("size",)]),
        (Annotated[int, pydantic.Field(ge=1, le=5)], 9, [()]),
        (Annotated[str, msgspec.Meta(max_length=2)], "abc", [()]),
        (list[Annotated[int, msgspec.Meta(gt=1)]], [2, 1], [(1,)]),
        (object(), 1, [()]),
        (Annotated[float, pydantic.Field(multiple_of=0.01)], 0.075, [()]),
        (Annotated[float, pydantic.Field(multiple_of=0.01)], 12_345_678.125, [()]),
        (Annotated[float, pydantic.Field(multiple_of=1)], 4_000_000_000.5, [()]),
        (set, [[1]], [()]),
        (decimal.Decimal, "NaN", [()]),
        (Annotated[decimal.Decimal, msgspec.Meta(multiple_of=3)], "1e1000000", [()]),
        # A time without a zone cannot be compared with the limit.
        (Annotated[datetime.datetime, pydantic.Field(ge=datetime.datetime.now(datetime.UTC))], "2000-01-01", [()]),
    ],
)
def test_every_mistake_is_reported_with_its_place(annotation: Any, value: Any, locations: list[Any]) -> None:
    with pytest.raises(Invalid) as caught:
        convert(value, annotation, ("body",))
    assert [mistake.loc for mistake in caught.value.mistakes] == [("body", *place) for place in locations]


@pytest.mark.parametrize(
    ("annotation", "text", "wanted"),
    [
        (int, "3", 3),
        pytest.param(int, "1" + "0" * 400, 10**400, id="larger than a float"),
        (float, "1e2", 100.0),
        (bool, "yes", True),
        (bool, "0", False),
        (Colour, "red", Colour.RED),
    ],
)
def test_texts_of_a_query_string_are_parsed(annotation: Any, text: str, wanted: Any) -> None:
    assert convert(text, annotation, ("query", "n"), is_text=True) == wanted


@pytest.mark.parametrize(("annotation", "text"), [(int, "3.5"), (float, "nan"), (bool, "perhaps"), (int, "")])
def test_texts_that_do_not_fit_are_mistakes(annotation: Any, text: str) -> None:
    with pytest.raises(Invalid):
        convert(text, annotation, ("query", "n"), is_text=True)


def test_a_check_in_post_init_is_a_mistake_and_not_an_error() -> None:
    @dataclasses.dataclass
    class Positive:
        n: int

        def __post_init__(self) -> None:
            if self.n < 0:
                raise ValueError("n is negative")

    with pytest.raises(Invalid, match="n is negative"):
        convert({"n": -1}, Positive, ("body",))


@pytest.mark.parametrize(("annotation", "value"), [(row[0], row[1]) for row in ROUND_TRIPS])
def test_schemas_accept_what_conversion_accepts(annotation: Any, value: Any) -> None:
    schemas = Schemas()
    schema = schemas.of(annotation)
    document = {**schema, "components": {"schemas": schemas.components}}
    if annotation is Pair and isinstance(value, list):
        return  # the schema describes the object only
    if annotation == set[int]:
        value = [1]  # a schema demands unique items
    jsonschema.Draft202012Validator(document).validate(value)


def test_models_of_one_name_keep_their_own_schemas() -> None:
    def models(kind: type) -> list[Any]:
        create: Any = pydantic.create_model
        part = create("Part", value=(kind, ...))
        # Its name is the one that `Part` would get next.
        other: Any = create("Part_", other=(kind, ...))
        whole = create("Whole", part=(part, ...), more=(list[other], ...))  # type: ignore[valid-type]
        return [whole, part, msgspec.defstruct("Struct", [("value", kind)])]

    schemas = Schemas()
    for kind, good, bad in ((int, 1, "a"), (str, "a", 1)):
        for model in models(kind):

            def value(each: Any, model: Any = model) -> Any:
                of_part = {"value": each}
                return {"part": of_part, "more": [{"other": each}]} if model.__name__ == "Whole" else of_part

            for _ in range(2):  # the second time, it finds the same components
                schema = schemas.of(model)
                document = {**schema, "components": {"schemas": schemas.components}}
                validator = jsonschema.Draft202012Validator(document)
                assert validator.is_valid(value(good))
                assert not validator.is_valid(value(bad))
    assert len(schemas.components) == 8, "a model that is named twice has one schema"


def test_of_many_mistakes_the_first_hundred_are_listed() -> None:
    with pytest.raises(Invalid) as caught:
        convert({"numbers": ["x"] * 100_000}, dict[str, list[int]], ("body",))
    assert len(caught.value.mistakes) == 101
    assert caught.value.mistakes[0].loc == ("body", "numbers", 0)
    assert (caught.value.mistakes[-1].loc, caught.value.mistakes[-1].type) == (("body",), "more")
    with pytest.raises(Invalid) as caught:
        convert({f"field{number}": 1 for number in range(100_000)}, Point, ("body",))
    assert len(caught.value.mistakes) == 101


def test_a_recursive_class_has_one_schema() -> None:
    schemas = Schemas()
    assert schemas.of(Line) == {"$ref": "#/components/schemas/Line"}
    assert set(schemas.components) == {"Line", "Point"}


def test_rounding_makes_no_multiple_a_mistake() -> None:
    cents = [0.07, 0.3, 12_345_678.13, 987_654_321_012.34]
    assert [convert(n, Annotated[float, pydantic.Field(multiple_of=0.01)], ("n",)) for n in cents] == cents


def test_a_text_cannot_begin_a_field_or_an_event_of_its_own() -> None:
    # Source: HTML standard, "Server-sent events": CR, LF and CRLF end a line.
    sent = answers.part("a\rid: 1\r\r\nb\nc", answers.EVENTS).body
    assert sent == b"data: a\ndata: id: 1\ndata: \ndata: b\ndata: c\n\n"


def test_return_values_become_json() -> None:
    value = {1: Point(1.0), "a": (Colour.RED, {2}), "m": Model(size=1), "s": Struct(1), "d": datetime.date(2026, 1, 2)}
    assert simple(value) == {
        "1": {"x": 1.0, "y": 0.0},
        "a": ["red", [2]],
        "m": {"size": 1},
        "s": {"size": 1},
        "d": "2026-01-02",
    }
    with pytest.raises(TypeError, match="object"):
        simple(object())
