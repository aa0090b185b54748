"""`thawd.deploy.packages.planning`: the form of a package follows from sizes, and layers are shared.

`example_contents.json` has the sizes of the functions in `examples/`, as `thawd package --json` measured them for
Python 3.13 on x86_64. In those of `captions`, torch is the build for CPUs, and the model of 958 MB is in the code.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thawd.deploy.packages.layering import share
from thawd.deploy.packages.planning import Plan, moved_pieces, plan
from thawd.deploy.packages.sizes import Contents, Piece
from thawd.deploy.packages.targets import Limits, PackageError

MB = 1024 * 1024
EXAMPLES = msgspec.json.decode(
    Path(__file__).with_name("example_contents.json").read_bytes(), type=dict[str, Contents], strict=True
)


def piece(
    name: str, unpacked_mb: float, packed_mb: float | None = None, *, group: str = "", digest: str = "1"
) -> Piece:
    packed = unpacked_mb / 3 if packed_mb is None else packed_mb
    return Piece(
        name=name,
        digest=digest,
        files=1,
        unpacked_bytes=round(unpacked_mb * MB),
        packed_bytes=round(packed * MB),
        group=group or name,
        brought_by=(name,),
    )


def contents(*pieces: Piece, name: str = "f", code_mb: float = 1, storage_mb: int = 512) -> Contents:
    return Contents(
        function=name,
        handler="app.handler",
        runtime="python3.13",
        architecture="x86_64",
        code=piece("", code_mb),
        pieces=pieces,
        ephemeral_storage_mb=storage_mb,
    )


def form_of(each: Contents, form: str = "auto") -> str:
    return plan([each], form).functions[0].form


def form_of_limited(each: Contents, limits: Limits) -> str:
    return plan([each], "auto", limits).functions[0].form


def test_the_plans_of_the_examples() -> None:
    forms = {name: plan([each]).functions[0] for name, each in EXAMPLES.items()}
    assert {name: each.form for name, each in forms.items()} == {
        "digits": "zip",
        "onnx-http": "layers",  # its model of 91 MB is in the code
        "stream": "zip",
        "multi_model": "zip",
        "captions": "image",
    }
    assert all(forms[name].direct for name in ("digits", "stream", "multi_model"))
    assert not forms["onnx-http"].direct
    [layer] = plan([EXAMPLES["onnx-http"]]).layers
    assert layer.direct
    assert layer.distributions == ("flatbuffers", "numpy", "onnxruntime", "packaging", "pillow", "protobuf")


def test_captions_with_its_model_elsewhere_is_split_if_its_tmp_is_large_enough() -> None:
    small = msgspec.structs.replace(EXAMPLES["captions"], code=piece("", 1))
    assert form_of(small) == "image"
    large = msgspec.structs.replace(small, ephemeral_storage_mb=2048)
    [planned] = plan([large]).functions
    assert planned.form == "split"
    assert planned.part == ("torch",)
    assert planned.handler == "thawd_parts.handler"


def test_a_package_that_fits_is_one_zip_file() -> None:
    [planned] = plan([contents(piece("numpy", 60))]).functions
    assert (planned.form, planned.direct, planned.inside, planned.handler) == ("zip", True, ("numpy",), "app.handler")


def test_a_zip_file_that_is_too_large_for_a_request_becomes_layers_that_are_not() -> None:
    made = plan([contents(piece("a", 100, 40), piece("b", 100, 40))])
    assert made.functions[0].form == "layers"
    assert made.functions[0].inside == ()
    assert [(layer.distributions, layer.direct) for layer in made.layers] == [(("a",), True), (("b",), True)]


def test_code_alone_that_is_too_large_for_a_request_is_uploaded_to_s3() -> None:
    [planned] = plan([contents(code_mb=200)]).functions
    assert (planned.form, planned.direct) == ("zip", False)


def test_equal_distributions_of_several_functions_are_in_one_layer() -> None:
    common = piece("numpy", 100, 40)
    made = plan([contents(common, piece("a", 60, 30), name="f"), contents(common, piece("b", 60, 30), name="g")])
    assert {layer.distributions: layer.functions for layer in made.layers} == {
        ("numpy",): ("f", "g"),
        ("a",): ("f",),
        ("b",): ("g",),
    }


def test_a_layer_never_has_the_name_of_a_function() -> None:
    layered, other = contents(piece("numpy", 150, 60), name="f"), contents(name="layer-1")
    made = plan([layered, other])
    assert [layer.name for layer in made.layers] == ["layer-2"]
    assert made.functions[0].layers == ("layer-2",)


def test_distributions_with_the_same_name_and_other_files_are_not_shared() -> None:
    one, other = piece("numpy", 150, 60), piece("numpy", 150, 60, digest="2")
    made = plan([contents(one, name="f"), contents(other, name="g")])
    assert sorted(layer.functions for layer in made.layers) == [("f",), ("g",)]


def test_functions_for_other_architectures_share_no_layer() -> None:
    one = contents(piece("numpy", 150, 60), name="f")
    other = msgspec.structs.replace(contents(piece("numpy", 150, 60), name="g"), architecture="arm64")
    assert len(plan([one, other]).layers) == 2


def test_the_smallest_group_that_is_enough_is_moved_into_the_part() -> None:
    each = contents(piece("a", 150), piece("b", 100), piece("c", 60), storage_mb=1024)
    assert [moved.name for moved in moved_pieces(each, Limits())] == ["b"]


def test_distributions_that_belong_together_are_moved_together() -> None:
    each = contents(piece("torch", 200, group="t"), piece("nvidia", 100, group="t"), piece("c", 60), storage_mb=1024)
    assert [moved.name for moved in moved_pieces(each, Limits())] == ["nvidia", "torch"]


def test_what_the_loader_needs_is_never_moved() -> None:
    each = contents(piece("botocore", 200), piece("a", 60), piece("b", 55), storage_mb=1024)
    assert {moved.name for moved in moved_pieces(each, Limits())} == {"a", "b"}


def test_a_part_that_does_not_fit_into_tmp_is_refused_with_the_size_to_set() -> None:
    each = contents(piece("torch", 700))
    with pytest.raises(PackageError, match=r"set ephemeral_storage_mb = 765 in thawd.toml"):
        plan([each], "split")
    assert form_of(each) == "image"
    assert form_of(msgspec.structs.replace(each, ephemeral_storage_mb=765)) == "split"


def test_what_fits_into_no_form_is_refused_with_all_reasons() -> None:
    with pytest.raises(PackageError) as caught:
        plan([contents(piece("a", 11_000)), contents(piece("b", 10), name="g")])
    assert "f fits into no form" in caught.value.message
    assert "image: 11,001 MB of files; at most 10,240 MB" in caught.value.message
    assert "zip:" in caught.value.message and "split:" in caught.value.message


@pytest.mark.parametrize("form", ["zip", "layers", "split", "image"])
def test_the_form_that_is_asked_for_is_used_if_it_fits(form: str) -> None:
    [planned] = plan([contents(piece("a", 20))], form).functions
    assert planned.form == form
    assert planned.part == (("a",) if form == "split" else ())


def test_sizes_are_compared_with_limits_to_the_byte() -> None:
    each = contents(msgspec.structs.replace(piece("a", 1), packed_bytes=1000), code_mb=0)
    fits = Limits(direct_bytes=1022)
    assert [plan([each], "zip", fits).functions[0].direct, form_of_limited(each, fits)] == [True, "zip"]
    smaller = Limits(direct_bytes=1021)
    assert [plan([each], "zip", smaller).functions[0].direct, form_of_limited(each, smaller)] == [False, "layers"]
    assert not plan([each], "image", Limits(image_bytes=each.unpacked_bytes)).functions[0].direct
    with pytest.raises(PackageError, match="fits into no image"):
        plan([each], "image", Limits(image_bytes=each.unpacked_bytes - 1))


def test_layers_and_split_packages_need_requirements() -> None:
    for form in ("layers", "split"):
        with pytest.raises(PackageError, match="no requirements"):
            plan([contents()], form)


def test_a_package_of_exactly_the_limit_is_too_large_for_lambda() -> None:
    limits = Limits(unpacked_bytes=10 * MB, direct_bytes=10 * MB)
    assert plan([contents(piece("a", 8), code_mb=1)], limits=limits).functions[0].form == "zip"
    assert plan([contents(piece("a", 9), code_mb=1)], limits=limits).functions[0].form == "split"


def test_a_plan_is_data() -> None:
    made = plan(list(EXAMPLES.values()))
    assert msgspec.json.decode(msgspec.json.encode(made), type=Plan) == made


def test_a_distribution_that_is_too_large_for_a_request_is_a_layer_of_its_own() -> None:
    made = plan([contents(piece("a", 100, 60), piece("b", 30, 10), piece("c", 30, 10))])
    assert [(layer.distributions, layer.direct) for layer in made.layers] == [(("a",), False), (("b", "c"), True)]


def test_a_layer_may_be_exactly_as_large_as_a_request() -> None:
    # Two files: two paths of 7 bytes more in a layer, twice each; and the end record of 22 bytes.
    one, other = (msgspec.structs.replace(piece(name, 100), packed_bytes=20 * MB) for name in "ab")
    limits = Limits(direct_bytes=40 * MB + 2 * 14 + 22)
    assert [layer.packed_bytes for layer in plan([contents(one, other)], "layers", limits).layers] == [
        limits.direct_bytes
    ]
    assert len(plan([contents(one, other)], "layers", Limits(direct_bytes=limits.direct_bytes - 1)).layers) == 2


def test_the_fifth_layer_takes_what_is_left() -> None:
    made = plan([contents(*(piece(name, 30, 30) for name in "abcdefg"))])
    assert [layer.distributions for layer in made.layers] == [("a",), ("b",), ("c",), ("d",), ("e", "f", "g")]
    assert [layer.direct for layer in made.layers] == [True, True, True, True, False]


def test_a_function_with_too_many_layers_has_copies_of_what_others_share() -> None:
    common = [piece(name, 30, 30) for name in "abc"]
    one = contents(*common, *(piece(name, 30, 30, digest="f") for name in "def"), name="f")
    other = contents(*common, piece("x", 30, 30), name="g")
    made = plan([one, other])
    assert {len(each.layers) for each in made.functions} == {5, 4}
    assert all(len(layer.functions) == 1 for layer in made.layers)


PIECES = st.lists(
    st.tuples(st.sampled_from("abcdefghijklmnop"), st.floats(0, 60), st.sampled_from("12")),
    min_size=1,
    max_size=12,
    unique_by=lambda each: each[0],
)


@given(st.lists(PIECES, min_size=1, max_size=5))
def test_each_function_has_each_of_its_distributions_in_one_of_at_most_five_layers(made: list[list[object]]) -> None:
    functions = [
        contents(*(piece(name, packed * 2, packed, digest=digest) for name, packed, digest in each), name=f"f{index}")  # type: ignore[misc]
        for index, each in enumerate(made)
    ]
    layers, used = share(functions, Limits())
    by_name = {layer.name: layer for layer in layers}
    for each in functions:
        assert len(used[each.function]) <= 5
        found = [name for layer in used[each.function] for name in by_name[layer].distributions]
        assert sorted(found) == sorted(piece.name for piece in each.pieces)
        assert all(each.function in by_name[name].functions for name in used[each.function])
    assert share(functions, Limits()) == (layers, used)
