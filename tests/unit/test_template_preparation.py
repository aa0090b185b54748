"""Templates as a whole: parameters, conditions, rules, the order of resources, plans, outputs, loops."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.template_stacks import CONTEXT, prepared
from thawd.deploy.templates.dynamic_references import DynamicReference, parse_reference
from thawd.deploy.templates.preparation import Output, prepare
from thawd.deploy.templates.refusals import TemplateError
from thawd.deploy.templates.values import Made, Unknown

_TOPIC = "Resources: {T: {Type: AWS::SNS::Topic, Properties: {P: !Ref P}}}"


def _parameter(declaration: str) -> str:
    return f"Parameters: {{P: {{{declaration}}}}}\n{_TOPIC}"


@pytest.mark.parametrize(
    ("declaration", "given_value", "value"),
    [
        ("Type: String, Default: 1.5", None, "1.5"),
        ("Type: String, Default: true", None, "true"),
        ("Type: String", "", ""),
        ("Type: Number, MinValue: 1, MaxValue: '10'", "10", "10"),
        ("Type: List<Number>", "1, 2", ["1", "2"]),
        ("Type: CommaDelimitedList, Default: ''", None, []),
        ("Type: CommaDelimitedList, AllowedValues: [a, b]", "a, b", ["a", "b"]),
        ("Type: String, AllowedPattern: '[a-z]+'", "abc", "abc"),
        (r"Type: String, AllowedPattern: '^[\p{Alnum}-]+\p{Digit}$'", "a-1", "a-1"),
        (r"Type: String, AllowedPattern: '^(?!.*[ ,])[\p{Print}]{3,}$'", "a~1", "a~1"),
        ("Type: List<AWS::EC2::Subnet::Id>", "subnet-1,subnet-2", ["subnet-1", "subnet-2"]),
        ("Type: AWS::SSM::Parameter::Name", "/any/name", "/any/name"),
        ("Type: AWS::SSM::Parameter::Value<String>", "/db/host", "db.internal"),
        ("Type: AWS::SSM::Parameter::Value<List<String>>, Default: ids", None, ["a", "b", "c"]),
        ("Type: AWS::SSM::Parameter::Value<AWS::EC2::Image::Id>, Default: /db/host", None, "db.internal"),
    ],
)
def test_a_parameter_is_what_was_given_or_its_default(declaration: str, given_value: str | None, value: object) -> None:
    # Source: CloudFormation user guide, "CloudFormation template Parameters syntax".
    given_values = {} if given_value is None else {"P": given_value}
    assert prepared(_parameter(declaration), **given_values).properties("T", {}) == {"P": value}


@pytest.mark.parametrize(
    ("declaration", "given_value", "words"),
    [
        ("Type: String", None, "Parameters: [P] must have values"),
        ("Type: Number", "ten", "Parameter 'P' must be a number"),
        ("Type: Number", "nan", "Parameter 'P' must be a number"),
        ("Type: List<Number>", "1,1_0", "Parameter 'P' must be a number"),
        ("Type: Number, MinValue: 1", "0", "Parameter 'P' must be a number not less than 1"),
        ("Type: List<Number>, MaxValue: 5", "1,6", "Parameter 'P' must be a number not greater than 5"),
        ("Type: String, AllowedValues: [a, 1]", "2", "Parameter 'P' must be one of AllowedValues"),
        ("Type: CommaDelimitedList, AllowedValues: [a, b]", "a,c", "Parameter 'P' must be one of AllowedValues"),
        ("Type: String, MinLength: 2", "a", "Parameter 'P' must contain at least 2 characters"),
        ("Type: String, MaxLength: '2'", "abc", "Parameter 'P' must contain at most 2 characters"),
        ("Type: String, AllowedPattern: '[a-z]+'", "abc1", "Parameter 'P' must match pattern [a-z]+"),
        (
            "Type: String, MinLength: 2, ConstraintDescription: two!",
            "a",
            "Parameter P failed to satisfy constraint: two!",
        ),
        ("Type: String, AllowedPattern: '['", "a", "cannot be evaluated"),
        ("Type: String, MinLength: many", "a", "MinLength of parameter P must be a number"),
        ("Type: Text", "a", "Unrecognized parameter type: Text"),
        ("Type: String, Deafult: x", "a", "Invalid template parameter property 'Deafult'"),
        ("Default: x", None, "Every Parameters object must contain a Type member."),
        ("Type: String, Default: [x]", None, "Every Default member must be a string."),
        ("Type: AWS::SSM::Parameter::Value<String>", "/no", "Unable to fetch parameters [/no] from parameter store"),
    ],
)
def test_a_parameter_that_breaks_its_declaration_is_refused(
    declaration: str, given_value: str | None, words: str
) -> None:
    with pytest.raises(TemplateError) as refused:
        prepared(_parameter(declaration), **({} if given_value is None else {"P": given_value}))
    assert words in refused.value.message


def test_parameters_that_the_template_does_not_have_are_refused_and_secret_ones_are_masked() -> None:
    with pytest.raises(TemplateError, match=r"Parameters: \[Q\] do not exist in the template"):
        prepared(_parameter("Type: String"), P="x", Q="y")
    [secret] = prepared(_parameter("Type: String, NoEcho: true"), P="x").parameters.values()
    assert (secret.shown, secret.value) == ("****", "x")
    [stored] = prepared(_parameter("Type: AWS::SSM::Parameter::Value<String>"), P="/db/host").parameters.values()
    assert (stored.shown, stored.resolved) == ("/db/host", "db.internal")


def test_conditions_decide_which_resources_outputs_and_branches_there_are() -> None:
    text = """
    Parameters: {Env: {Type: String}, Flag: {Type: String, Default: 'true'}}
    Conditions:
      IsProd: !And [!Equals [!Ref Env, prod], !Condition IsFlagged]
      IsFlagged: !Equals [!Ref Flag, true]
      IsOther: !Not [!Or [!Condition IsProd, !Equals [!Sub '${Env}-x', test-x]]]
    Resources:
      A: {Type: AWS::SNS::Topic, Condition: IsProd}
      B: {Type: AWS::SNS::Topic, DependsOn: [A, C], Properties: {N: !If [IsProd, !Ref A, none]}}
      C: {Type: AWS::SNS::Topic, Properties: {}}
    Outputs:
      Of: {Value: !Ref A, Condition: IsProd, Export: {Name: !Sub '${AWS::StackName}-A'}, Description: d}
    """
    prod, test = prepared(text, Env="prod"), prepared(text, Env="test")
    assert prod.conditions == {"IsProd": True, "IsFlagged": True, "IsOther": False}
    assert (list(prod.resources), list(test.resources)) == (["A", "B", "C"], ["B", "C"])
    assert (prod.needs("B"), test.needs("B")) == ({"A", "C"}, {"C"})
    assert test.properties("B", {}) == {"N": "none"}
    assert test.outputs({}) == []
    assert prod.outputs({"A": Made("a-1")}) == [Output("Of", "a-1", "d", "app-A")]
    assert prepared(text, Env="dev").conditions["IsOther"] is True


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        ("{A: !Condition B, B: !Condition A}", "circular condition dependency between A, B"),
        ("{A: !Condition B}", "Unresolved condition dependency B"),
        ("{A: !Equals [a]}", "every Fn::Equals object requires a list of 2"),
        ("{A: !And [!Equals [a, a]]}", "every Fn::And object requires a list of at least 2"),
        ("{A: !Not [!Equals [a, a], !Equals [a, a]]}", "every Fn::Not object requires one"),
        ("{A: !Equals [!Ref T, a]}", "Unresolved resource dependencies [T]"),
        ("{A: yes}", "must be a condition function"),
        ("{A: !Join ['', [a]]}", "is no condition function"),
    ],
)
def test_malformed_conditions_are_refused(conditions: str, words: str) -> None:
    with pytest.raises(TemplateError) as refused:
        prepared(f"Conditions: {conditions}\nResources: {{T: {{Type: AWS::SNS::Topic}}}}")
    assert words in refused.value.message


def test_rules_refuse_parameters_that_do_not_go_together() -> None:
    # Source: CloudFormation user guide, "Rules syntax": the instance type for production.
    text = """
    Parameters: {Env: {Type: String}, Size: {Type: String}, L: {Type: CommaDelimitedList, Default: 'a,a'}}
    Rules:
      Prod:
        RuleCondition: !Equals [!Ref Env, prod]
        Assertions:
          - Assert: !Contains [[large, huge], !Ref Size]
            AssertDescription: production is large
          - Assert: !And [!EachMemberIn [!Ref L, [a, b]], !EachMemberEquals [!Ref L, a]]
    Resources: {T: {Type: AWS::SNS::Topic}}
    """
    prepared(text, Env="test", Size="small")
    prepared(text, Env="prod", Size="huge")
    with pytest.raises(TemplateError, match="Rule Prod failed: production is large"):
        prepared(text, Env="prod", Size="small")
    with pytest.raises(TemplateError, match="Rule Prod failed"):
        prepared(text, Env="prod", Size="huge", L="a,b")


def test_a_cycle_is_refused_with_its_members() -> None:
    text = """Resources:
      A: {Type: T::T::T, Properties: {P: !GetAtt B.Arn}}
      B: {Type: T::T::T, Properties: {P: !Sub '${C}'}}
      C: {Type: T::T::T, DependsOn: A}
      D: {Type: T::T::T, DependsOn: A}
    """
    with pytest.raises(TemplateError, match=r"^Circular dependency between resources: \[A, B, C\]$"):
        prepared(text).order()
    with pytest.raises(TemplateError, match=r"Circular dependency between resources: \[A\]"):
        prepared("Resources: {A: {Type: T::T::T, Properties: {P: !Ref A}}}")


@given(st.integers(1, 12).flatmap(lambda n: st.lists(st.lists(st.integers(0, 11), max_size=4), min_size=n, max_size=n)))
def test_resources_come_after_those_that_they_need(edges: list[list[int]]) -> None:
    kinds = [
        lambda name: {"Ref": name},
        lambda name: {"Fn::Sub": f"x${{{name}}}"},
        lambda name: {"Fn::GetAtt": [name, "Arn"]},
        lambda name: {"Fn::Sub": ["${v}", {"v": {"Fn::Join": ["", [{"Ref": name}]]}}]},
    ]
    needs = {f"R{n}": [f"R{each % n}" for each in edge if n] for n, edge in enumerate(edges)}
    resources = {
        name: {"Type": "T::T::T", "Properties": {"P": [kinds[n % 4](each) for n, each in enumerate(others)]}}
        for name, others in reversed(needs.items())
    }
    order = prepare({"Resources": resources}, {}, CONTEXT).order()
    assert sorted(order) == sorted(needs)
    assert all(order.index(other) < order.index(name) for name, others in needs.items() for other in others)


def test_a_plan_has_unknown_values_where_resources_are_not_made() -> None:
    text = """Resources:
      A: {Type: T::T::T}
      B: {Type: T::T::T}
      C:
        Type: T::T::T
        Properties:
          Known: !Ref A
          Joined: !Join ['', [x, !GetAtt B.Arn, !Sub '${A}${B}']]
          Picked: !Select [0, !Split [',', !GetAtt B.List]]
          Item: !Select [1, [!Ref B, fixed]]
          Stored: '{{resolve:ssm:/db/host}}'
Outputs: {O: {Value: !Ref B}}
    """
    stack = prepared(text)
    assert stack.planned("C", {"A": Made("a")}) == {
        "Known": "a",
        "Joined": Unknown(frozenset({"B.Arn", "B"})),
        "Picked": Unknown(frozenset({"B.List"})),
        "Item": "fixed",
        "Stored": "{{resolve:ssm:/db/host}}",
    }
    assert stack.outputs({}, is_plan=True) == [Output("O", Unknown(frozenset({"B"})), None, None)]
    with pytest.raises(TemplateError, match="Resource B is referred to before it exists"):
        stack.properties("C", {"A": Made("a")})


def test_imported_exports_are_named() -> None:
    text = """Resources:
      A: {Type: T::T::T, Properties: {P: !ImportValue net-Subnet, Q: !GetAtt B.Arn}}
      B: {Type: T::T::T}
    """
    assert prepared(text).imports() == {"net-Subnet"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Description: x", "At least one Resources member must be defined."),
        ("Resources: {A: {Properties: {}}}", "[/Resources/A] Every Resources object must contain a Type member."),
        ("Resources: {A: x}", "Any Resources member must be an object."),
        ("Resources: {A-b: {Type: T}}", "Resource name A-b is non alphanumeric."),
        ("Resources: {A: {Type: T, Properties: [x]}}", "[/Resources/A/Properties] must be an object"),
        ("Resources: {A: {Type: T, DependsOn: B}}", "Unresolved resource dependencies [B] in the Resources block"),
        ("Resources: {A: {Type: T, DeletionPolicy: Keep}}", "DeletionPolicy Keep of resource A is not supported"),
        ("Resources: {A: {Type: T, DeletionPolicy: Snapshot}}", "type T does not support DeletionPolicy Snapshot"),
        ("Resources: {A: {Type: T, UpdateReplacePolicy: RetainExceptOnCreate}}", "of resource A is not supported"),
        ("Resources: {A: {Type: T}}\nOutputs: {O: {}}", "must contain a Value object: O"),
        ("Resources: {A: {Type: T}}\nOutputs: {O: {Value: [x]}}", "must evaluate to a String: O"),
        ("Resources: {A: {Type: T}}\nOutputs: {O: {Value: !Ref B}}", "dependencies [B] in the Outputs block"),
        ("Resources: {A: {Type: T}}\nOutputs: {O: {Value: x, Export: {Name: ''}}}", "Output O is malformed."),
        ("Resource: {A: {Type: T}}", "Invalid template property or properties [Resource]"),
        ("Resources: {A: {Type: T}}\nParameters:", "[/Parameters] 'null' values are not allowed in templates"),
        ("Resources: {A: {Type: T}}\nMappings: {M: {a: b}}", "Every Mappings member must be a map of maps: M"),
        ("Resources: {A: {Type: T}}\nTransform: My::Macro", "No transform named My::Macro found."),
        ("Resources: {A: {Type: T}}\nTransform: {Name: X}", "Transform must be the name"),
    ],
)
def test_malformed_templates_are_refused_in_the_words_of_cloudformation(text: str, words: str) -> None:
    with pytest.raises(TemplateError) as refused:
        stack = prepared(text)
        stack.outputs({"A": Made("a")})
    assert words in refused.value.message


def test_loops_make_resources_properties_conditions_and_outputs() -> None:
    # Source: CloudFormation template reference, "Examples of Fn::ForEach in the Outputs section" and "… Resources …".
    text = """
    Transform: AWS::LanguageExtensions
    Parameters: {Names: {Type: CommaDelimitedList, Default: 'a.b,c'}, Keep: {Type: String, Default: Retain}}
    Conditions:
      Fn::ForEach::Is: [Name, [A, B], {'Is${Name}': !Equals [!Ref Name, A]}]
    Resources:
      Fn::ForEach::Buckets:
        - Identifier
        - [A, B]
        - S3Bucket${Identifier}:
            Type: AWS::S3::Bucket
            Condition: Is${Identifier}
            DeletionPolicy: !Ref Keep
            Properties:
              Id: !Sub 'All${Identifier}-${AWS::Region}'
              Fn::ForEach::Tags: [Name, !Ref Names, {'Tag${Name}': !Ref Name}]
      Fn::ForEach::Topics:
        - Topic
        - !Ref Names
        - Topic&{Topic}: {Type: AWS::SNS::Topic, Properties: {Name: !Join ['.', [!Ref Topic, fifo]]}}
    Outputs:
      Fn::ForEach::Outer:
        - Identifier
        - [A]
        - Fn::ForEach::Inner:
            - Property
            - [Arn, DomainName]
            - S3Bucket${Identifier}${Property}: {Value: !GetAtt [!Sub 'S3Bucket${Identifier}', !Ref Property]}
    """
    stack = prepared(text)
    assert list(stack.resources) == ["S3BucketA", "Topicab", "Topicc"]
    assert stack.resources["S3BucketA"].deletion_policy == "Retain"
    assert stack.properties("S3BucketA", {}) == {"Id": "AllA-eu-central-1", "Taga.b": "a.b", "Tagc": "c"}
    assert stack.properties("Topicab", {}) == {"Name": "a.b.fifo"}
    made = {"S3BucketA": Made("b", {"Arn": "arn:b", "DomainName": "b.s3"})}
    assert {each.key: each.value for each in stack.outputs(made)} == {
        "S3BucketAArn": "arn:b",
        "S3BucketADomainName": "b.s3",
    }


@pytest.mark.parametrize(
    ("loop", "words"),
    [
        ("[X, [a, a], {'R${X}': {Type: T}}]", "the collection has an item twice"),
        ("[X, [a, b], {R: {Type: T}}]", "makes R a second time"),
        ("[X, one, {'R${X}': {Type: T}}]", "needs a list of texts"),
        ("[X, [a]]", "needs [identifier, collection"),
        ("[X, [a], {'Fn::ForEach::Y': [X, [b], {'R${X}': {Type: T}}]}]", "needs an identifier of its own"),
    ],
)
def test_malformed_loops_are_refused(loop: str, words: str) -> None:
    with pytest.raises(TemplateError) as refused:
        prepared(f"Transform: AWS::LanguageExtensions\nResources: {{'Fn::ForEach::L': {loop}}}")
    assert words in refused.value.message


def test_loops_that_multiply_are_refused() -> None:
    digits = "[0,1,2,3,4,5,6,7,8,9]"
    inner = "{'R${V0}${V1}${V2}${V3}${V4}': {Type: T}}"
    for n in range(5):
        inner = f"{{'Fn::ForEach::L{n}': [V{n}, {digits}, {inner}]}}"
    with pytest.raises(TemplateError, match="loops make more than"):
        prepared(f"Transform: AWS::LanguageExtensions\nResources: {inner}")


def test_a_dynamic_reference_is_taken_apart() -> None:
    # Source: CloudFormation user guide, "Get a secret or secret value from Secrets Manager".
    arn = "arn:aws:secretsmanager:us-west-2:123456789012:secret:MySecret-a1b2c3"
    assert parse_reference("secretsmanager", f"{arn}:SecretString:password:AWSPREVIOUS") == DynamicReference(
        "secretsmanager", arn, json_key="password", version_stage="AWSPREVIOUS"
    )
    assert parse_reference("secretsmanager", "MySecret:SecretString:password::EXAMPLE1") == DynamicReference(
        "secretsmanager", "MySecret", json_key="password", version_id="EXAMPLE1"
    )
    assert parse_reference("ssm", "S3AccessControl:2") == DynamicReference("ssm", "S3AccessControl", version=2)
    for service, text in [("ssm", "a:b"), ("secretsmanager", "a:Binary"), ("secretsmanager", "a:SecretString:k:s:v")]:
        with pytest.raises(TemplateError, match="Invalid dynamic reference"):
            parse_reference(service, text)
