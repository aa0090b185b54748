"""Arguments come from JSON bodies, forms, query strings and bodies that are arrays, images or bytes."""

from __future__ import annotations

import dataclasses
import io
import zipfile
from typing import Any, BinaryIO

import numpy
import numpy.typing
import PIL.Image
import pytest

from thawd.typed.bodies import BodyError, multipart
from thawd.typed.conversion import Invalid
from thawd.typed.parameters import Parameters, Unsupported

JSON, FORM = "application/json", "application/x-www-form-urlencoded"


def form(*parts: tuple[str, bytes]) -> tuple[bytes, str]:
    """A multipart body of heads and contents, and its content type."""
    body = b"".join(
        b"--x\r\ncontent-disposition: form-data; %b\r\n\r\n%b\r\n" % (head.encode(), data) for head, data in parts
    )
    return body + b"--x--\r\n", 'multipart/form-data; boundary="x"'


def png(size: int = 3) -> bytes:
    """A square picture."""
    buffer = io.BytesIO()
    PIL.Image.new("RGB", (size, size)).save(buffer, "PNG")
    return buffer.getvalue()


def npy(array: Any) -> bytes:
    """An array as a file."""
    buffer = io.BytesIO()
    numpy.save(buffer, array)
    return buffer.getvalue()


def archive() -> bytes:
    """An archive of arrays, which NumPy opens as well."""
    buffer = io.BytesIO()
    numpy.savez(buffer, numpy.eye(2))
    assert zipfile.is_zipfile(buffer)
    return buffer.getvalue()


HUGE = npy(numpy.zeros((10,))).replace(b"(10,), }           ", b"(1000000000000,), }")
BROKEN = npy(numpy.zeros((10,))).replace(b"(10,), }", b"(10, ((  ")


@dataclasses.dataclass
class Node:
    """Contains itself."""

    next: Node | None = None


def with_node(node: Node) -> None:
    pass


def with_texts(a: list[str] | None = None) -> None:
    pass


def with_integers(array: numpy.typing.NDArray[numpy.uint8]) -> None:
    pass


def scalars(a: int, b: str = "b") -> None:
    pass


def with_list(a: list[int], b: int = 1) -> None:
    pass


def with_image(image: PIL.Image.Image, size: int = 1) -> None:
    pass


def with_array(array: numpy.typing.NDArray[numpy.float32]) -> None:
    pass


def with_bytes(data: bytes, more: bytes | None = None) -> None:
    pass


def with_file(file: BinaryIO) -> None:
    pass


@pytest.mark.parametrize(
    ("function", "query", "body", "kind", "wanted"),
    [
        (scalars, "", b'{"a": 1}', JSON, {"a": 1}),
        (scalars, "a=1&b=x", b"", "", {"a": 1, "b": "x"}),
        (scalars, "b=x", b'{"a": 1}', JSON, {"a": 1, "b": "x"}),
        (scalars, "", b"a=1&b=%C3%A9", FORM, {"a": 1, "b": "é"}),
        (scalars, "", *form(('name="a"', b"1")), {"a": 1}),
        (with_list, "b=2", b"[1, 2]", JSON, {"a": [1, 2], "b": 2}),
        (with_list, "", b"a=[1]&b=3", FORM, {"a": [1], "b": 3}),
        (with_list, "", b"a=1&a=2", FORM, {"a": [1, 2]}),
        (with_list, "a=1", b"", "", {"a": [1]}),
        (with_texts, "", b"a=x&a=1&a=%5B%22y%22%5D", FORM, {"a": ["x", "1", '["y"]']}),
        (with_texts, "", b"a=1", FORM, {"a": ["1"]}),
        (with_texts, "", b"a=null", FORM, {"a": None}),
        (with_texts, "", b"", "", {}),
        (with_bytes, "", b'{"data": "AAE="}', JSON, {"data": b"\0\1"}),
        (with_bytes, "", *form(('name="data"; filename="f"', b"\r\n--\0")), {"data": b"\r\n--\0"}),
    ],
)
def test_arguments_are_found(function: Any, query: str, body: bytes, kind: str, wanted: Any) -> None:
    assert Parameters(function).of_request(query, body, kind) == wanted


def test_an_image_an_array_and_a_file_are_bodies() -> None:
    found = Parameters(with_image).of_request("size=2", png(), "image/png")
    assert (found["image"].size, found["size"]) == ((3, 3), 2)
    for body, kind in ((npy(numpy.eye(2)), "application/x-npy"), (b"[[1, 0], [0, 1]]", JSON)):
        array = Parameters(with_array).of_request("", body, kind)["array"]
        assert (array.tolist(), array.dtype) == ([[1.0, 0.0], [0.0, 1.0]], numpy.float32)
    assert Parameters(with_file).of_request("", b"abc", "")["file"].read() == b"abc"


@pytest.mark.parametrize(
    ("function", "query", "body", "kind", "places"),
    [
        (scalars, "", b"", "", [("body", "a")]),
        (scalars, "c=1", b'{"a": 1}', JSON, [("query", "c")]),
        (scalars, "", b'{"a": 1, "bb": 2}', JSON, [("body", "bb")]),
        (scalars, "", b"[1]", JSON, [("body",)]),
        (scalars, "", b"{", JSON, [("body",)]),
        (scalars, "", b'{"a": NaN}', JSON, [("body",)]),
        (scalars, "", b"[" * 100_000, JSON, [("body",)]),
        (scalars, "", b"a=x&c=1", FORM, [("form", "c"), ("form", "a")]),
        (scalars, "", b"no form", "multipart/form-data; boundary=x", [("body",)]),
        (scalars, "", b"no form", "multipart/form-data", [("body",)]),
        (with_list, "", b"", "", [("body",)]),
        (with_list, "", b"a=1&a=x", FORM, [("form", "a", 1)]),
        (with_image, "", b"no image", "image/png", [("body",)]),
        (with_array, "", npy(numpy.array(["a"])), "application/x-npy", [("body",)]),
        (with_array, "", b"\x93NUMPY", "application/x-npy", [("body",)]),
        (with_array, "", npy(numpy.array([None])), "application/x-npy", [("body",)]),
        (with_array, "", archive(), "application/x-npy", [("body",)]),
        (with_array, "", HUGE, "application/x-npy", [("body",)]),
        (with_array, "", BROKEN, "application/x-npy", [("body",)]),
        (with_array, "", b"[1e300]", JSON, [("body",)]),
        (with_integers, "", b"[300]", JSON, [("body",)]),
        (with_integers, "", b"[1.5]", JSON, [("body",)]),
        (with_integers, "", npy(numpy.array([-1])), "application/x-npy", [("body",)]),
        (with_node, "", b'{"next":' * 600 + b"null" + b"}" * 600, JSON, [("body",)]),
        (with_bytes, "", b'{"data": "?"}', JSON, [("body", "data")]),
    ],
)
def test_mistakes_are_reported(function: Any, query: str, body: bytes, kind: str, places: Any) -> None:
    with pytest.raises(Invalid) as caught:
        Parameters(function).of_request(query, body, kind)
    assert [mistake.loc for mistake in caught.value.mistakes] == places


def test_numbers_that_fit_get_the_element_type_of_the_annotation() -> None:
    array = Parameters(with_integers).of_request("", b"[255, 1.0, true]", JSON)["array"]
    assert (array.tolist(), array.dtype) == ([255, 1, 1], numpy.uint8)


def test_a_body_of_a_foreign_type_is_unsupported() -> None:
    with pytest.raises(Unsupported):
        Parameters(scalars).of_request("", b"a,b", "text/csv")
    with pytest.raises(Unsupported):
        Parameters(with_image).of_request("", b"{}", JSON)


def test_a_parameter_without_an_annotation_is_refused() -> None:
    with pytest.raises(TypeError, match="the parameter x of f needs an annotation"):
        exec("def f(x): pass", scope := {})
        Parameters(scope["f"])
    with pytest.raises(TypeError, match=r"has \* or \*\*"):
        Parameters(lambda *x: None)


def test_names_of_files_keep_their_quotation_marks_and_backslashes() -> None:
    body, kind = form(('name="a"; filename="C:\\\\x \\"y\\".png"', b"1"), ("name=b; filename*=utf-8''%C3%A9", b"2"))
    fields = multipart(body, kind)
    assert (fields["a"][0].filename, fields["b"][0].filename) == ('C:\\x "y".png', "é")


@pytest.mark.parametrize("body", [b"", b"--x\r\n", b"--x\r\nname\r\n--x--", b"--x\r\na: b\r\n\r\n\r\n--x--\r\n"])
def test_a_broken_multipart_body_is_an_error(body: bytes) -> None:
    with pytest.raises(BodyError):
        multipart(body, "multipart/form-data; boundary=x")


@dataclasses.dataclass
class Flower:
    """An object of scalars."""

    length: float


def with_flower(flower: Flower, top: int = 1) -> None:
    pass


@pytest.mark.parametrize(
    ("function", "body"),
    [
        (scalars, b'{"a": 1}'),
        (with_flower, b'{"length": 5.1}'),
        (with_list, b" [1, 2]"),
        (scalars, b'{"a": "x=y&b=1"}'),
    ],
)
def test_json_that_is_sent_as_a_form_is_refused_with_the_header_to_send(function: Any, body: bytes) -> None:
    with pytest.raises(Invalid) as caught:
        Parameters(function).of_request("", body, FORM)
    (mistake,) = caught.value.mistakes
    assert mistake.loc == ("body",)
    assert "content-type: application/json" in mistake.msg


def test_a_form_that_only_begins_like_json_is_a_form() -> None:
    assert Parameters(scalars).of_request("", b"a=1&b={x}", FORM) == {"a": 1, "b": "{x}"}
    with pytest.raises(Invalid) as caught:
        Parameters(scalars).of_request("", b"{a=1", FORM)
    assert "content-type" not in caught.value.mistakes[0].msg


@pytest.mark.parametrize(("query", "body"), [("length=5.1", b""), ("", b"length=5.1")])
def test_fields_of_an_object_outside_a_json_body_are_refused_with_the_way_out(query: str, body: bytes) -> None:
    with pytest.raises(Invalid) as caught:
        Parameters(with_flower).of_request(query, body, FORM)
    assert "send flower as a JSON body" in caught.value.mistakes[0].msg
