"""Template documents: CloudFormation's YAML and JSON, and what is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thawd.deploy.templates.refusals import TemplateError
from thawd.deploy.templates.template_parsing import parse

_TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=8)
_VALUES = st.recursive(
    _TEXTS | st.integers(-(2**40), 2**40) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=12,
)

# Nine anchors, each of which repeats the one before ten times.
_BILLIONS = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("!Ref Bucket", {"Ref": "Bucket"}),
        ("!Ref 123", {"Ref": "123"}),
        ("!GetAtt Bucket.Arn", {"Fn::GetAtt": ["Bucket", "Arn"]}),
        ("!GetAtt Nested.Outputs.Name", {"Fn::GetAtt": ["Nested", "Outputs.Name"]}),
        ("!GetAtt [Bucket, Arn]", {"Fn::GetAtt": ["Bucket", "Arn"]}),
        ("!Sub '${A}-b'", {"Fn::Sub": "${A}-b"}),
        ("!Sub ['${A}', {A: !Ref B}]", {"Fn::Sub": ["${A}", {"A": {"Ref": "B"}}]}),
        ("!Join [',', [a, !Ref B]]", {"Fn::Join": [",", ["a", {"Ref": "B"}]]}),
        ("!If [Is, 1, !Ref 'AWS::NoValue']", {"Fn::If": ["Is", 1, {"Ref": "AWS::NoValue"}]}),
        ("!Condition Is", {"Condition": "Is"}),
        ("!Base64 {'Fn::Sub': x}", {"Fn::Base64": {"Fn::Sub": "x"}}),
        ("!GetAZs ''", {"Fn::GetAZs": ""}),
        ("2012-10-17", "2012-10-17"),
        ("'0123'", "0123"),
        ("yes", True),
        ("0.5", 0.5),
    ],
)
def test_short_forms_and_scalars_are_read_as_cloudformation_reads_them(text: str, value: object) -> None:
    # Source: CloudFormation user guide, "CloudFormation template format" and each function's page in its reference.
    assert parse(f"A: {text}") == {"A": value}


@given(st.dictionaries(_TEXTS, _VALUES, max_size=4))
def test_json_is_read_as_it_was_written(document: dict[str, object]) -> None:
    assert parse(json.dumps(document)) == document


def test_keys_are_texts_and_anchors_and_merges_are_followed() -> None:
    document = parse("base: &b {x: 1, y: 2}\nagain: *b\nmore: {<<: *b, y: 3, 80: z}\n")
    assert document["again"] == {"x": 1, "y": 2}
    assert document["more"] == {"x": 1, "y": 3, "80": "z"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A: !Foo x", "YAML tag !Foo is not supported (line 1, column 4)"),
        ("A: !!binary aGk=", "is not supported"),
        ("A: !!python/object:os.system {}", "is not supported"),
        ("A: [1, 2", "YAML not well-formed"),
        ("A: '\x07'", "YAML not well-formed"),
        ("A: &a [*a]", "an anchor contains itself"),
        ("A: &a {<<: *a}", "an anchor contains itself"),
        ("A: {[1]: 2}", "a key is no text"),
        ("A: {<<: 3}", "<< needs a map"),
        ("- A", "unsupported structure"),
        ("", "unsupported structure"),
        ("A: " + "[" * 150 + "]" * 150, "nested more than"),
        ('{"A": ' + "[" * 150 + "]" * 150 + "}", "nested more than"),
        ("{" + '"A":[' * 200_000, "nested more than"),
        ("A: x\nB: " + "x" * 5_000_000, "may not exceed"),
        ("A: " + "1" * 5000, "a number has 5000 characters"),
        ('{"A": ' + "1" * 5000 + "}", "JSON not well-formed"),
        (_BILLIONS, "values"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else None,
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_its_place(text: str, words: str) -> None:
    with pytest.raises(TemplateError) as refused:
        parse(text)
    assert words in refused.value.message


@pytest.mark.parametrize("text", ["A: 1\nB: 2\nA: 3", '{"A": 1, "B": 2, "A": 3}'])
def test_of_two_equal_keys_the_last_one_counts(text: str) -> None:
    # Source: answers of ValidateTemplate and GetTemplateSummary, in github.com/go-to-k/cdk-real-drift/issues/1074.
    assert parse(text) == {"A": 3, "B": 2}
