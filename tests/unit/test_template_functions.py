"""Each intrinsic function, by the examples of CloudFormation's template reference, and what it refuses."""

from __future__ import annotations

import base64
import ipaddress
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.template_stacks import value_of
from thawd.deploy.templates.context_free_functions import cidr, equals, join, split, to_base64, to_json_string
from thawd.deploy.templates.refusals import TemplateError
from thawd.deploy.templates.values import Made

_MAP = (
    "Mappings: {RegionMap: {us-east-1: {HVM64: ami-1, Zones: [a, b]}, eu-central-1: {HVM64: ami-2}}, "
    "Empty: {A: {B: ''}}}"
)
_CONDITIONS = "Conditions: {IsA: !Equals [a, a], IsB: !Equals [a, b]}"
_LIST = "Parameters: {L: {Type: CommaDelimitedList, Default: 'a, b ,c'}, N: {Type: Number, Default: 2}}"
_EXTENSIONS = "Transform: AWS::LanguageExtensions"
_MADE = {
    "Db": Made("db-1", {"Arn": "arn:db", "Endpoint.Port": "3306", "Endpoint": {"Address": "h"}, "Zones": ["a", "b"]})
}

# Source of each group: the function's page in the CloudFormation template reference.
_EXAMPLES: list[tuple[str, Any]] = [
    # Fn::Base64
    ("!Base64 AWS CloudFormation", "QVdTIENsb3VkRm9ybWF0aW9u"),
    ("{'Fn::Base64': !Sub '${Db}'}", "ZGItMQ=="),
    # Fn::Cidr: six subnets of /27 from a /24; an IPv6 block
    ("!Cidr ['192.168.0.0/24', 6, 5]", [f"192.168.0.{32 * n}/27" for n in range(6)]),
    ("!Cidr ['192.168.0.0/24', '1', '5']", ["192.168.0.0/27"]),
    ("!Select [1, !Cidr ['2001:db8::/56', 256, 64]]", "2001:db8:0:1::/64"),
    ("!Select [1, !Cidr ['10.0.0.0/16', 2]]", "10.0.1.0/24"),
    ("!Select [1, !Cidr ['2001:db8::/56', 2]]", "2001:db8:0:1::/64"),
    # Fn::FindInMap
    ("!FindInMap [RegionMap, us-east-1, HVM64]", "ami-1"),
    ("!FindInMap [RegionMap, !Ref 'AWS::Region', HVM64]", "ami-2"),
    ("!FindInMap [RegionMap, us-east-1, Zones]", ["a", "b"]),
    ("!FindInMap [Empty, A, B]", ""),
    ("!FindInMap [RegionMap, mars, HVM64, DefaultValue: !Ref 'AWS::Region']", "eu-central-1"),
    ("!FindInMap [NoMap, mars, HVM64, DefaultValue: [x]]", ["x"]),
    # Fn::GetAtt, also of attributes that are maps or have a dot
    ("!GetAtt Db.Arn", "arn:db"),
    ("!GetAtt Db.Endpoint.Port", "3306"),
    ("!GetAtt Db.Endpoint.Address", "h"),
    ("!GetAtt [Db, Arn]", "arn:db"),
    ("{'Fn::GetAtt': [Db, !Select [0, [Arn]]]}", "arn:db"),
    # Fn::GetAZs
    ("!GetAZs ''", ["eu-central-1a", "eu-central-1b", "eu-central-1c"]),
    ("!Select [0, !GetAZs us-east-1]", "us-east-1a"),
    ("!Select ['1', {'Fn::GetAZs': !Ref 'AWS::Region'}]", "eu-central-1b"),
    # Fn::If, with AWS::NoValue
    ("!If [IsA, x, !GetAtt Db.Arn]", "x"),
    ("!If [IsB, x, [y, !If [IsA, !Ref 'AWS::NoValue', z]]]", ["y"]),
    ("!If [IsB, x, !Ref 'AWS::NoValue']", "absent"),
    ("{a: !Ref 'AWS::NoValue', b: 1}", {"b": 1}),
    # Fn::ImportValue
    ("!ImportValue net-Subnet", "subnet-1"),
    ("{'Fn::ImportValue': !Sub 'net-${K}'}", "subnet-1"),
    # Fn::Join, of texts, a list parameter, a list attribute, and what another function returns
    ("!Join [':', [a, b, c]]", "a:b:c"),
    ("!Join ['', ['arn:', !Ref 'AWS::Partition', ':s3:::b-', !Ref 'AWS::Region']]", "arn:aws:s3:::b-eu-central-1"),
    ("!Join ['-', !Ref L]", "a-b-c"),
    ("!Join ['-', !GetAtt Db.Zones]", "a-b"),
    ("!Join ['-', !Split [',', 'p,q']]", "p-q"),
    ("!Join ['-', [1, true, !Ref 'AWS::NoValue', 0.5]]", "1-true-0.5"),
    # Fn::Length, Fn::ToJsonString
    ("!Length [1, !Ref N, {a: b}]", 3),
    ("!Length [!Ref L]", 1),
    ("{'Fn::Length': !Ref L}", 3),
    ("{'Fn::ToJsonString': {a: [1, !Ref N], z: !Ref 'AWS::NoValue'}}", '{"a":[1,"2"]}'),
    ("!ToJsonString [!Ref 'AWS::StackName']", '["app"]'),
    # Fn::Select
    ("!Select ['1', [apples, grapes, oranges, mangoes]]", "grapes"),
    ("!Select [0, !Ref L]", "a"),
    # Fn::Split
    ("!Split ['|', 'a|b|c']", ["a", "b", "c"]),
    ("!Split ['|', 'a||c|']", ["a", "", "c", ""]),
    ("!Select [2, !Split [',', 'x,y,z']]", "z"),
    # Fn::Sub, with one argument and with two, and a literal
    ("!Sub 'arn:aws:ec2:${AWS::Region}:${AWS::AccountId}:vpc/${Db}'", "arn:aws:ec2:eu-central-1:123456789012:vpc/db-1"),
    ("!Sub ['www.${Domain}-${Db.Endpoint.Port}', {Domain: !Ref K}]", "www.Subnet-3306"),
    ("!Sub ['${L}', {L: !Join ['', !Ref L]}]", "abc"),
    ("!Sub '${!Literal} ${N} $x {y}'", "${Literal} 2 $x {y}"),
    ("!Sub ['${A.b}', {A.b: dotted}]", "dotted"),
    # Ref
    ("!Ref N", "2"),
    ("!Ref L", ["a", "b", "c"]),
    ("!Ref Db", "db-1"),
    ("!Ref AWS::URLSuffix", "amazonaws.com"),
    ("!Ref AWS::NotificationARNs", []),
    # What only looks like a function
    ("{Condition: {StringEquals: {a: b}}}", {"Condition": {"StringEquals": {"a": "b"}}}),
    ("{Ref: L, Other: x}", {"Ref": "L", "Other": "x"}),
    # Dynamic references
    ("'{{resolve:ssm:/db/host:1}}:3306'", "db.internal:3306"),
    ("!Sub '{{resolve:ssm-secure:${D}}}'", "db.internal"),
    ("'{{resolve:secretsmanager:secret}}'", '{"user":"ann"}'),
]  # fmt: skip


@pytest.mark.parametrize(("function", "value"), _EXAMPLES, ids=[function for function, _ in _EXAMPLES])
def test_a_function_returns_what_its_reference_says(function: str, value: Any) -> None:
    parameters = _LIST.replace("}}", "}, K: {Type: String}, D: {Type: String, Default: /db/host}}")
    assert value_of(function, _MAP, _CONDITIONS, parameters, _EXTENSIONS, made=_MADE, K="Subnet") == value


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("!Join [',', a]", "every Fn::Join object requires two parameters"),
        ("!Join [',', [a, [b]]]", "every Fn::Join object requires two parameters"),
        ("!Join [',']", "every Fn::Join object requires two parameters"),
        ("!Split ['', a]", "every Fn::Split object requires two parameters"),
        ("!Split [',', [a]]", "every Fn::Split object requires two parameters"),
        ("!Select [3, [a, b]]", "cannot select nonexistent value at index 3"),
        ("!Select [-1, [a, b]]", "cannot select nonexistent value at index -1"),
        ("!Select [2, [a, b]]", "cannot select nonexistent value at index 2"),
        ("!Select {a: 1, b: 2}", "every Fn::Select object requires two parameters"),
        ("!Select [0]", "every Fn::Select object requires two parameters"),
        ("!Select [0, a]", "every Fn::Select object requires two parameters"),
        ("!Sub [a]", "don't specify expected arguments"),
        ("!Sub ['${A}', [A]]", "don't specify expected arguments"),
        ("!Sub '${A:-b}'", "variable names in Fn::Sub syntax must contain only"),
        ("!Sub '${L}'", "${L} does not resolve to a string"),
        ("!Sub '${Missing}'", "Unresolved resource dependencies [Missing] in the Resources block"),
        ("!Ref Missing", "Unresolved resource dependencies [Missing] in the Resources block"),
        ("!If [IsA, x, !Ref Missing]", "Unresolved resource dependencies [Missing] in the Resources block"),
        ("!Ref [L]", "every Ref object must have a single String value"),
        ("!GetAtt Missing.Arn", "instance of Fn::GetAtt references undefined resource Missing"),
        ("!GetAtt Db", "every Fn::GetAtt object requires two non-empty parameters"),
        ("!GetAtt Db.Colour", "resource Db does not support attribute type Colour in Fn::GetAtt"),
        ("!If [Maybe, a, b]", "Unresolved condition dependency Maybe"),
        ("!If [IsA, a]", "Fn::If requires a list argument"),
        ("!FindInMap [RegionMap, mars, HVM64]", "Unable to get mapping for RegionMap::mars::HVM64"),
        ("!FindInMap [NoMap, a, b]", "Mapping named 'NoMap' is not present"),
        ("!FindInMap [RegionMap, a, b, DefaultValue: c]", "needs the transform AWS::LanguageExtensions"),
        ("!Length [a]", "needs the transform AWS::LanguageExtensions"),
        ("{'Fn::ForEach::X': [A, [b], {c: d}]}", "needs the transform AWS::LanguageExtensions"),
        ("!ImportValue nothing", "No export named nothing found."),
        ("!ImportValue {Ref: Db}", "must not depend on a resource"),
        ("!Base64 [a]", "every Fn::Base64 object must have a String-typed value."),
        ("!Cidr ['10.0.0.0/24', 3, 8]", "has no 3 subnets of 8 bits"),
        ("!Cidr ['10.0.0.0/24', 0, 4]", "a count from 1 to 256"),
        ("!Cidr [here, 1, 4]", "Fn::Cidr"),
        (f"!Join ['{'x' * 100_000}', [{'a, ' * 100}a]]", "Fn::Join makes a text of more than 4194304 characters"),
        (f"!Sub ['{'${A}' * 100}', {{A: '{'x' * 100_000}'}}]", "Fn::Sub makes a text of more than 4194304 characters"),
        (f"!Cidr [10.0.0.0/8, '{'9' * 5000}', 8]", "a count from 1 to 256"),
        (f"!Cidr [10.0.0.0/8, 2, '{'9' * 5000}']", "a count from 1 to 256"),
        (f"!Select ['{'9' * 5000}', [a]]", "cannot select nonexistent value at index 999"),
        ("{'Fn::Transform': {Name: Macro}}", "runs a macro"),
        ("{'Fn::Foo': a}", "Encountered unsupported function: Fn::Foo"),
        ("{'Fn::Join': ['', [a]], b: c}", "stands beside other keys"),
        ("'{{resolve:ssm:nothing}}'", "Unable to fetch parameters [nothing] from parameter store"),
        ("'{{resolve:secretsmanager:nothing}}'", "can't find the specified secret value for nothing"),
        ("'{{resolve:vault:x}}'", "Invalid dynamic reference {{resolve:vault:x}}"),
        ("null", "[/Resources/X/Properties/P] 'null' values are not allowed in templates"),
    ],
)
def test_wrong_arguments_are_refused(function: str, words: str) -> None:
    with pytest.raises(TemplateError) as refused:
        value_of(function, _MAP, _CONDITIONS, _LIST, made=_MADE)
    assert words in refused.value.message


@given(st.lists(st.text(st.characters(exclude_characters="|"), max_size=5), min_size=1))
def test_split_takes_apart_what_join_made(texts: list[str]) -> None:
    assert split(["|", join(["|", texts])]) == texts


@given(st.integers(0, 2**32 - 1), st.integers(8, 28), st.integers(1, 256), st.integers(1, 16))
def test_subnets_are_apart_within_their_block_and_of_their_size(
    address: int, prefix: int, count: int, bits: int
) -> None:
    block = ipaddress.ip_network((address, prefix), strict=False)
    if bits > 32 - prefix or 2 ** (32 - prefix - bits) < count:
        with pytest.raises(TemplateError):
            cidr([str(block), count, bits])
        return
    subnets = [ipaddress.ip_network(text) for text in cidr([str(block), count, bits])]
    assert len(subnets) == count
    assert all(one.prefixlen == 32 - bits and one.subnet_of(block) for one in subnets)  # type: ignore[arg-type]
    assert sorted(set(subnets)) == subnets


_JSON = st.recursive(
    st.text(max_size=5) | st.integers() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(_JSON) | st.dictionaries(st.text(max_size=5), _JSON))
def test_texts_that_are_made_of_values_hold_them(value: Any) -> None:
    text = to_json_string(value)
    assert json.loads(text) == value
    assert base64.b64decode(to_base64(text)).decode() == text
    assert equals([value, value])
