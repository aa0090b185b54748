"""`thawd.gateway.lambda_api.inputs`: which operation a request is, how its input is read, and the error messages.

Source: the texts of Lambda's ValidationException and SerializationException.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from thawd.errors import (
    InvalidRequestContentException,
    MethodNotAllowedException,
    ResourceNotFoundException,
    SerializationException,
    ThawdError,
    ValidationException,
)
from thawd.gateway.lambda_api import inputs
from thawd.gateway.lambda_api.inputs import ApiOperation
from thawd.gateway.lambda_api.invoke import InvokeApi
from thawd.gateway.lambda_api.invoke_stream import InvokeStreamApi

TEXT = {"type": "string"}


def operation(**members: Any) -> ApiOperation:
    return ApiOperation("Do", "POST", re.compile("/x"), {}, 200, members)


def read(members: dict[str, Any], document: object = None, *, query: str = "", **in_path: str) -> dict[str, Any]:
    body = b"" if document is None else document if isinstance(document, bytes) else json.dumps(document).encode()
    return inputs.read(operation(**members), in_path=in_path, query=query, body=body)


def refusal(kind: type[ThawdError], members: dict[str, Any], document: object = None, **rest: Any) -> str:
    with pytest.raises(kind) as caught:
        read(members, document, **rest)
    return caught.value.message


# Which operation


def test_an_operation_is_found_by_method_and_path_with_its_members_decoded() -> None:
    found, members = inputs.find("GET", "/2015-03-31/functions/a%3Ab/", "")
    assert (found.name, members) == ("GetFunction", {"FunctionName": "a:b"})
    assert inputs.find("GET", "/2015-03-31/functions", "")[0].name == "ListFunctions"
    assert inputs.find("POST", "/2015-03-31/functions/", "")[0].name == "CreateFunction"


def test_of_operations_with_one_path_the_query_tells() -> None:
    path = "/2019-09-30/functions/f/provisioned-concurrency"
    assert inputs.find("GET", path, "List=ALL")[0].name == "ListProvisionedConcurrencyConfigs"
    assert inputs.find("GET", path, "Qualifier=1")[0].name == "GetProvisionedConcurrencyConfig"
    assert inputs.find("GET", path, "List=")[0].name == "GetProvisionedConcurrencyConfig"


def test_a_path_that_no_operation_has_and_a_method_that_none_takes_are_told_apart() -> None:
    with pytest.raises(ResourceNotFoundException) as unknown:
        inputs.find("GET", "/2015-03-31/nothing", "")
    assert unknown.value.message == "No operation of the Lambda API has the path /2015-03-31/nothing"
    with pytest.raises(MethodNotAllowedException) as wrong:
        inputs.find("PATCH", "/2015-03-31/functions/f", "")
    assert wrong.value.message == "/2015-03-31/functions/f accepts DELETE, GET, not PATCH"
    assert wrong.value.allowed == ("DELETE", "GET")


# Where members are in a request


def test_members_come_from_path_query_and_body_and_from_nowhere_else() -> None:
    members = {
        "Name": {**TEXT, "location": "uri", "locationName": "N"},
        "Count": {"type": "integer", "location": "querystring", "locationName": "count"},
        "All": {"type": "boolean", "location": "querystring", "locationName": "all"},
        "Keys": {"type": "list", "member": TEXT, "location": "querystring", "locationName": "keys"},
        "Text": TEXT,
        "Token": {**TEXT, "location": "header", "locationName": "token"},
    }
    document = {"Text": "t", "Name": "no", "Token": "no", "Unknown": 1}
    found = read(members, document, query="count=1&count=-2&all=TRUE&keys=a&keys=&other=1", N="f")
    assert found == {"Name": "f", "Count": -2, "All": True, "Keys": ["a", ""], "Text": "t"}
    assert read({"All": members["All"]}, query="all=yes") == {"All": False}
    assert read({"Text": TEXT}, {"Text": None}) == {}
    for body in (b"", b" \n"):
        assert read({"Text": TEXT}, body) == {}


@pytest.mark.parametrize("text", ["1.5", "", "x", "1" * 19, "+1", "\u0663x"])
def test_a_number_in_the_query_is_a_whole_one(text: str) -> None:
    members = {"Count": {"type": "long", "location": "querystring", "locationName": "count"}}
    message = refusal(SerializationException, members, query=f"count={text.replace('+', '%2B')}")
    assert message == f"{text!r} can not be converted to an Long"
    assert read(members, query=f"count={'9' * 18}") == {"Count": int("9" * 18)}


@pytest.mark.parametrize("body", [b"{", b"{'a': 1}", b'{"a": NaN}', b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_json_is_told_so(body: bytes) -> None:
    assert refusal(InvalidRequestContentException, {}, body).startswith("Could not parse request body into json: ")


def test_a_body_that_is_no_object_is_told_so() -> None:
    assert refusal(SerializationException, {}, [1]) == "Start of structure or map found where not expected"


# Types

GOOD: list[tuple[dict[str, Any], object, object]] = [
    (TEXT, "a", "a"),
    (TEXT, 5, "5"),
    (TEXT, 1.5, "1.5"),
    ({"type": "integer"}, 5, 5),
    ({"type": "long"}, 5.0, 5),
    ({"type": "double"}, 1.5, 1.5),
    ({"type": "float"}, 2, 2.0),
    ({"type": "timestamp"}, 1.7e9, 1.7e9),
    ({"type": "boolean"}, False, False),
    ({"type": "blob"}, "YWJj", b"abc"),
    ({"type": "list", "member": TEXT}, ["a", None, 1], ["a", "1"]),
    ({"type": "map", "key": TEXT, "value": TEXT}, {"a": "b", "c": None}, {"a": "b"}),
    ({"type": "structure", "members": {"A": TEXT, "B": TEXT}}, {"A": "a", "B": None, "C": 1}, {"A": "a"}),
]


@pytest.mark.parametrize(("shape", "given", "value"), GOOD)
def test_a_value_is_read_by_its_shape(shape: dict[str, Any], given: object, value: object) -> None:
    found = read({"M": shape}, {"M": given})["M"]
    assert found == value
    assert type(found) is type(value)


NAMES = {"STRING_VALUE": "x", "NUMBER_VALUE": 1.5, "TRUE_VALUE": True, "START_ARRAY": ["x"], "START_OBJECT": {"x": 1}}


@pytest.mark.parametrize(
    ("shape", "wanted", "wrong"),
    [
        (TEXT, "a String", ["TRUE_VALUE", "START_ARRAY", "START_OBJECT"]),
        ({"type": "integer"}, "an Integer", list(NAMES)),
        ({"type": "double"}, "a Double", ["STRING_VALUE", "TRUE_VALUE", "START_ARRAY", "START_OBJECT"]),
        ({"type": "boolean"}, "a Boolean", ["STRING_VALUE", "NUMBER_VALUE", "START_ARRAY", "START_OBJECT"]),
        ({"type": "blob"}, "a Blob", ["NUMBER_VALUE", "TRUE_VALUE", "START_ARRAY", "START_OBJECT"]),
        ({"type": "list", "member": TEXT}, "a List", ["STRING_VALUE", "NUMBER_VALUE", "TRUE_VALUE", "START_OBJECT"]),
        (
            {"type": "map", "key": TEXT, "value": TEXT},
            "a Map",
            ["STRING_VALUE", "NUMBER_VALUE", "TRUE_VALUE", "START_ARRAY"],
        ),
        (
            {"type": "structure", "members": {}},
            "a Structure",
            ["STRING_VALUE", "NUMBER_VALUE", "TRUE_VALUE", "START_ARRAY"],
        ),
    ],
)
def test_a_value_of_another_type_is_told_by_both_their_names(
    shape: dict[str, Any], wanted: str, wrong: list[str]
) -> None:
    for name in wrong:
        message = refusal(SerializationException, {"M": shape}, {"M": NAMES[name]})
        assert message == f"{name} can not be converted to {wanted}"


def test_false_whole_numbers_and_those_beyond_all_bounds_are_told_apart() -> None:
    message = refusal(SerializationException, {"M": {"type": "integer"}}, {"M": False})
    assert message == "FALSE_VALUE can not be converted to an Integer"
    for kind in ("integer", "double"):
        refusal(SerializationException, {"M": {"type": kind}}, b'{"M": 1e999}')
    for text in ("a*b=", "YW*Jj"):
        assert refusal(SerializationException, {"M": {"type": "blob"}}, {"M": text}) == "The blob is not valid Base64"
    message = refusal(SerializationException, {"M": {"type": "boolean"}}, {"M": 5})
    assert message == "NUMBER_VALUE can not be converted to a Boolean"


@pytest.mark.parametrize("document", [b'{"M": "\\ud800"}', b'{"M": {"\\ud800": "x"}}'])
def test_half_of_a_surrogate_pair_is_refused_as_such(document: bytes) -> None:
    shape = TEXT if b"{" not in document[1:] else {"type": "map", "key": TEXT, "value": TEXT}
    message = refusal(SerializationException, {"M": shape}, document)
    assert message == "A string contains half of a surrogate pair, which UTF-8 cannot encode; send valid Unicode"


def nested(levels: int) -> tuple[dict[str, Any], object]:
    shape, value = TEXT, "x"
    for _ in range(levels):
        shape, value = {"type": "list", "member": shape}, [value]  # type: ignore[assignment]
    return shape, value


def test_a_request_is_nested_to_33_levels_at_most() -> None:
    shape, value = nested(32)
    assert read({"M": shape}, {"M": value}) == {"M": value}
    shape, value = nested(33)
    assert refusal(SerializationException, {"M": shape}, {"M": value}) == "The request is nested too deeply"
    for kind in ("map", "structure"):
        shape, value = TEXT, "x"
        for _ in range(33):
            inner = {"members": {"a": shape}} if kind == "structure" else {"key": TEXT, "value": shape}
            shape, value = {"type": kind, **inner}, {"a": value}  # type: ignore[assignment]
        refusal(SerializationException, {"M": shape}, {"M": value})


# Constraints


@pytest.mark.parametrize(
    ("shape", "least", "most", "below", "above", "words"),
    [
        ({"type": "integer", "min": 2, "max": 4}, 2, 4, 1, 5, "value"),
        ({"type": "long", "min": 2, "max": 4}, 2, 4, 1, 5, "value"),
        ({"type": "double", "min": 2, "max": 4}, 2.0, 4.0, 1.9, 4.1, "value"),
        ({"type": "float", "min": 2, "max": 4}, 2.0, 4.0, 1.9, 4.1, "value"),
        (
            {"type": "map", "key": TEXT, "value": TEXT, "min": 1, "max": 2},
            {"a": "1"},
            {"a": "1", "b": "2"},
            {},
            {"a": "1", "b": "2", "c": "3"},
            "length",
        ),
        ({**TEXT, "min": 2, "max": 4}, "ab", "abcd", "a", "abcde", "length"),
        ({"type": "list", "member": TEXT, "min": 1, "max": 2}, ["a"], ["a", "b"], [], ["a", "b", "c"], "length"),
        ({"type": "blob", "min": 1, "max": 3}, "YQ==", "YWJj", "", "YWJjZA==", "length"),
    ],
)
def test_bounds_include_their_ends(
    shape: dict[str, Any], least: object, most: object, below: object, above: object, words: str
) -> None:
    for inside in (least, most):
        read({"Size": shape}, {"Size": inside})
    for outside, comparison in ((below, f"greater than or equal to {shape['min']}"), (above, "less than or equal to")):
        message = refusal(ValidationException, {"Size": shape}, {"Size": outside})
        assert message.startswith("1 validation error detected: Value ")
        assert f" at 'size' failed to satisfy constraint: Member must have {words} {comparison}" in message


@pytest.mark.parametrize(
    ("members", "document", "said"),
    [
        (
            {"Name": {**TEXT, "required": True}},
            {},
            "1 validation error detected: Value null at 'name' failed to satisfy constraint: Member must not be null",
        ),
        (
            {"Name": {**TEXT, "pattern": "[a-z]+"}},
            {"Name": "aB"},
            "1 validation error detected: Value 'aB' at 'name' failed to satisfy constraint: Member must satisfy "
            "regular expression pattern: [a-z]+",
        ),
        (
            {"Kind": {**TEXT, "enum": ["A", "B"]}},
            {"Kind": "C"},
            "1 validation error detected: Value 'C' at 'kind' failed to satisfy constraint: Member must satisfy enum "
            "value set: [A, B]",
        ),
        (
            {"Keys": {"type": "list", "member": {**TEXT, "min": 2}, "max": 1}},
            {"Keys": ["ab", "c"]},
            "2 validation errors detected: Value '[ab, c]' at 'keys' failed to satisfy constraint: Member must have "
            "length less than or equal to 1; Value '[ab, c]' at 'keys' failed to satisfy constraint: Member must "
            "satisfy constraint: [Member must have length greater than or equal to 2, Member must not be null]",
        ),
        (
            {"Tags": {"type": "map", "key": {**TEXT, "max": 1}, "value": {**TEXT, "max": 2}}},
            {"Tags": {"ab": "x", "c": "xyz"}},
            "2 validation errors detected: Value '{ab=x, c=xyz}' at 'tags' failed to satisfy constraint: Map keys must "
            "satisfy constraint: [Member must have length less than or equal to 1]; Value '{ab=x, c=xyz}' at 'tags' "
            "failed to satisfy constraint: Map value must satisfy constraint: [Member must have length less than or "
            "equal to 2, Member must not be null]",
        ),
        (
            {"Outer": {"type": "structure", "members": {"Inner": {"type": "integer", "required": True, "min": 3}}}},
            {"Outer": {"Inner": 2}},
            "1 validation error detected: Value '2' at 'outer.inner' failed to satisfy constraint: Member must have "
            "value greater than or equal to 3",
        ),
        (
            {"Outer": {"type": "structure", "members": {"Inner": {"type": "integer", "required": True}}}},
            {"Outer": {}},
            "1 validation error detected: Value null at 'outer.inner' failed to satisfy constraint: Member must not "
            "be null",
        ),
        (
            {
                "Environment": {
                    "type": "structure",
                    "members": {
                        "V": {
                            "type": "map",
                            "sensitive": True,
                            "key": {**TEXT, "max": 1},
                            "value": {**TEXT, "max": 2},
                        }
                    },
                }
            },
            {"Environment": {"V": {"ab": "secret"}}},
            "2 validation errors detected: Value at 'environment.v' failed to satisfy constraint: Map keys must "
            "satisfy constraint: [Member must have length less than or equal to 1]; Value at 'environment.v' "
            "failed to satisfy constraint: Map value must satisfy constraint: [Member must have length less than or "
            "equal to 2, Member must not be null]",
        ),
    ],
)
def test_what_breaks_a_constraint_is_told_in_lambdas_words(members: Any, document: object, said: str) -> None:
    assert refusal(ValidationException, members, document) == said


def test_ten_problems_are_shown_and_all_are_counted() -> None:
    members = {f"M{number}": {**TEXT, "required": True} for number in range(12)}
    message = refusal(ValidationException, members)
    assert message.startswith("12 validation errors detected: ")
    assert message.count("must not be null") == 10


def test_javas_names_for_kinds_of_characters_are_understood() -> None:
    shape = {**TEXT, "pattern": r"[\p{L}\p{Z}\p{N}_-]+"}
    assert read({"M": shape}, {"M": "Ünï 5_-"}) == {"M": "Ünï 5_-"}
    refusal(ValidationException, {"M": shape}, {"M": "a!"})
    assert read({"M": {**TEXT, "pattern": ".*"}}, {"M": "a\nb"}) == {"M": "a\nb"}
    refusal(ValidationException, {"M": {**TEXT, "pattern": "a.*"}}, {"M": "a\nb"})


def test_a_text_is_matched_up_to_its_longest_length_or_4096_characters() -> None:
    unbounded = {**TEXT, "pattern": "x*"}
    read({"M": unbounded}, {"M": "x" * 4096})
    assert "regular expression" in refusal(ValidationException, {"M": unbounded}, {"M": "x" * 4097})
    bounded = {**unbounded, "max": 5000}
    read({"M": bounded}, {"M": "x" * 5000})
    assert "regular expression" in refusal(ValidationException, {"M": bounded}, {"M": "x" * 4999 + "y"})
    message = refusal(ValidationException, {"M": bounded}, {"M": "x" * 5001})
    assert message.startswith("1 validation error detected: ")
    message = refusal(ValidationException, {"M": {**unbounded, "max": 5}}, {"M": "xxxxxy"})
    assert message.startswith("2 validation errors detected: "), "a text slightly too long is matched, too"


@pytest.mark.parametrize("kind", ["integer", "long", "double", "timestamp"])
@pytest.mark.parametrize("number", ["1" + "0" * 400, "-1" + "0" * 400, "1e400"])
def test_a_number_that_no_type_has_is_refused(kind: str, number: str) -> None:
    refusal(SerializationException, {"N": {"type": kind}}, f'{{"N": {number}}}'.encode())


@pytest.mark.parametrize("kind", ["integer", "long"])
def test_a_whole_number_has_64_bits(kind: str) -> None:
    for number in (-(1 << 63), (1 << 63) - 1):
        assert read({"N": {"type": kind}}, {"N": number}) == {"N": number}
    for number in (-(1 << 63) - 1, 1 << 63):
        assert "can not be converted to an Integer" in refusal(
            SerializationException, {"N": {"type": kind}}, {"N": number}
        )


def test_a_function_may_be_called_as_an_operation_is() -> None:
    for name in ("invocations", "response-streaming-invocations"):
        assert not InvokeApi.claims(f"/2015-03-31/functions/{name}")
        assert not InvokeStreamApi.claims(f"/2021-11-15/functions/{name}")
        assert InvokeApi.claims(f"/2015-03-31/functions/{name}/invocations")
