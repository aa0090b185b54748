"""The model: which CloudFormation resources a configuration becomes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.aws_orders import EVERYTHING, FOREIGN, deployed, model, of_type, order
from thawd import config
from thawd.deploy.aws import naming
from thawd.deploy.aws.stack import Code, DeploymentError, LayerCode, Order
from thawd.deploy.aws.template import Model, make_model
from thawd.deploy.aws.used_stores import read_uses

FUNCTION = '[functions.f]\nhandler = "plain.handler"\n'


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return model(tmp_path_factory.mktemp("everything"), EVERYTHING)


def allowed(made: Model, role: str) -> dict[str, list[Any]]:
    """Return the resources that a role allows, by action."""
    found: dict[str, list[Any]] = {}
    for statement in made.template["Resources"][role]["Properties"]["Policies"][0]["PolicyDocument"]["Statement"]:
        for action in statement["Action"]:
            found.setdefault(action, []).extend(statement["Resource"])
    return found


def function_of(made: Model, name: str) -> dict[str, Any]:
    [found] = [entry for entry in of_type(made, "AWS::Lambda::Function") if entry["FunctionName"] == f"shop-{name}"]
    return found


def test_cfn_lint_finds_no_mistake_in_a_template_with_every_kind_of_resource(tmp_path: Path) -> None:
    api = pytest.importorskip("cfnlint.api", reason="cfn-lint is not installed")
    arguments = pytest.importorskip("cfnlint.config").ManualArgs(regions=["us-east-1"])
    made = model(tmp_path, EVERYTHING + 'rollout = "Canary10Percent5Minutes"\n')
    assert [str(match) for match in api.lint(made.text, config=arguments)] == []


def test_the_same_configuration_gives_the_same_bytes(everything: Model, tmp_path: Path) -> None:
    assert model(tmp_path, EVERYTHING).text == everything.text


def test_a_role_allows_what_the_code_does_and_nothing_else(everything: Model) -> None:
    found = allowed(everything, "ClassifyRole")
    assert sorted(found) == [
        "dynamodb:PutItem",
        "lambda:InvokeFunction",
        "logs:CreateLogStream",
        "logs:PutLogEvents",
        "s3:GetObject",
        "s3:ListBucket",
        "sns:Publish",
        "sqs:DeleteMessage",
        "sqs:GetQueueAttributes",
        "sqs:ReceiveMessage",
        "sqs:SendMessage",
        "xray:PutTelemetryRecords",
        "xray:PutTraceSegments",
    ]
    assert found["s3:GetObject"] == [
        {"Fn::Sub": "arn:${AWS::Partition}:s3:::shop-uploads-${AWS::AccountId}-${AWS::Region}/*"}
    ]
    assert found["sqs:ReceiveMessage"] == [{"Fn::GetAtt": ["OrdersQueue", "Arn"]}, FOREIGN]
    assert found["sqs:SendMessage"] == [{"Fn::GetAtt": ["DeadQueue", "Arn"]}]
    assert sorted(allowed(everything, "AfterRole")) == [
        *("logs:CreateLogStream", "logs:PutLogEvents", "xray:PutTelemetryRecords", "xray:PutTraceSegments")
    ]


def test_a_function_keeps_its_settings(everything: Model) -> None:
    found = function_of(everything, "classify")
    assert (found["MemorySize"], found["Timeout"], found["Handler"]) == (1024, 60, "classify.handler")
    assert found["ReservedConcurrentExecutions"] == 20
    assert found["SnapStart"] == {"ApplyOn": "PublishedVersions"}
    variables = found["Environment"]["Variables"]
    assert variables["MODEL"] == "squeezenet"
    assert json.loads(variables["STACK_THAWD_TABLES"]) == {"labels": ["shop-labels", "key", ""]}
    assert found["Layers"] and "Layers" not in function_of(everything, "after")


def test_snapshots_yield_to_provisioned_concurrency_and_this_is_said(everything: Model) -> None:
    assert "SnapStart" not in function_of(everything, "after")
    said = {entry.where: entry.what for entry in everything.missing}
    assert said["functions.after.snapshot"].endswith("environments start cold")
    assert set(said) == {
        *("functions.after.keep_alive", "functions.after.snapshot", 'routes."POST /later"'),
        'routes."POST /classify"',
    }


def test_a_bucket_depends_on_permissions_and_on_nothing_that_depends_on_it(everything: Model) -> None:
    bucket = everything.template["Resources"]["UploadsBucket"]
    assert bucket["DependsOn"] == ["AfterUploadsPermission", "ClassifyUploadsPermission"]
    assert "UploadsBucket" not in json.dumps(
        [resource for name, resource in everything.template["Resources"].items() if name != "UploadsBucket"]
    )


def test_everything_that_invokes_a_function_invokes_its_alias(everything: Model) -> None:
    [first, second] = of_type(everything, "AWS::Lambda::EventSourceMapping")
    assert first["FunctionName"] == second["FunctionName"] == {"Ref": "ClassifyAlias"}
    assert first["EventSourceArn"] == {"Fn::GetAtt": ["OrdersQueue", "Arn"]}
    assert first["ScalingConfig"] == {"MaximumConcurrency": 4}
    assert {entry["Target"]["Arn"]["Ref"] for entry in of_type(everything, "AWS::Scheduler::Schedule")} == {
        "AfterAlias"
    }
    uris = [entry["IntegrationUri"]["Ref"] for entry in of_type(everything, "AWS::ApiGatewayV2::Integration")]
    assert sorted(uris) == ["AfterAlias", "ClassifyAlias"]


def test_an_input_of_a_schedule_is_not_taken_for_a_reference(everything: Model) -> None:
    [found] = [entry for entry in of_type(everything, "AWS::Scheduler::Schedule") if entry["Name"] == "shop-often"]
    assert json.loads(found["Target"]["Input"]) == {"price": "${5}"}


def test_schedules_of_provisioned_concurrency_become_scheduled_actions(everything: Model) -> None:
    [found] = of_type(everything, "AWS::ApplicationAutoScaling::ScalableTarget")
    assert found["ResourceId"] == "function:shop-after:live"
    assert found["ScheduledActions"][0]["ScalableTargetAction"] == {"MinCapacity": 10, "MaxCapacity": 10}


def test_a_new_version_comes_with_new_code_and_only_then(tmp_path: Path) -> None:
    def versions(**more: Any) -> set[str]:
        resources = model(tmp_path, FUNCTION, **more).template["Resources"]
        return {name for name, resource in resources.items() if resource["Type"] == "AWS::Lambda::Version"}

    assert versions() == versions()
    assert versions() != versions(key="two")


def test_a_percentage_keeps_the_old_version_until_the_rollout_is_changed(tmp_path: Path) -> None:
    canary = FUNCTION + '[deploy.aws]\nrollout = "10%"\n'
    first = model(tmp_path, canary)
    second = model(tmp_path, canary, key="two", deployed=deployed(first))
    again = model(tmp_path, canary, key="two", deployed=deployed(second))
    promoted = model(tmp_path, FUNCTION, key="two", deployed=deployed(second))
    assert "RoutingConfig" not in of_type(first, "AWS::Lambda::Alias")[0]
    [alias] = of_type(second, "AWS::Lambda::Alias")
    [weight] = alias["RoutingConfig"]["AdditionalVersionWeights"]
    assert weight["FunctionWeight"] == 0.1
    assert alias["FunctionVersion"] == of_type(first, "AWS::Lambda::Alias")[0]["FunctionVersion"]
    assert again.text == second.text
    assert of_type(promoted, "AWS::Lambda::Alias")[0]["FunctionVersion"] == weight["FunctionVersion"]
    assert len(of_type(promoted, "AWS::Lambda::Version")) == 1


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("batch = { size = 4 }", "", "batch: the handler takes a list of events"),
        ("concurrency = 4", "async def handler(e, c): pass", "is async def"),
        ("", "def handler(e, c):\n yield b''", "streams its answer by yield"),
        ("", "from thawd import models\ndef handler(e, c): pass", "it uses thawd.models"),
        ("", "import thawd\n@thawd.function\ndef handler(n: int): pass", "it uses thawd.function"),
    ],
)
def test_a_handler_that_lambda_cannot_run_is_refused(tmp_path: Path, line: str, code: str, said: str) -> None:
    text = f'[functions.f]\nhandler = "odd.handler"\n{line}\n'
    with pytest.raises(DeploymentError, match=said):
        model(tmp_path, text, odd=code or "def handler(e, c): pass")


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ('on_success = "https://example.com/"', "functions.f.on_success", "no webhooks"),
        ('on_success = "table:rows"\n[tables.rows]', "functions.f.on_success", "no tables"),
        ('runtime = "python3.11"', "functions.f.snapshot", "has no snapshots for python3.11"),
        ("ephemeral_storage_mb = 1024", "functions.f.snapshot", "more than 512 MB"),
        ("idle_timeout_s = 1", "functions.f.idle_timeout_s", "Lambda decides"),
        ('[tables.rows]\nurl = "postgresql://host/db"', "tables.rows", "cannot reach postgresql://host/db"),
        ('[tables.rows]\nurl = "dynamodb://rows?endpoint=http://127.0.0.1:1"', "tables.rows", "cannot reach dynamodb"),
        ('runtime = "nodejs20.x"', "functions.f.snapshot", "only for Python 3.12 and later"),
        (
            '[functions.f.url]\nauth_type = "NONE"\ninvoke_mode = "RESPONSE_STREAM"',
            "functions.f.url.invoke_mode",
            "stream",
        ),
        ('[buckets.far]\nurl = "s3://far"\nnotify = [{ function = "f" }]', "buckets.far.notify", "exists already"),
    ],
)
def test_what_aws_lacks_is_named(tmp_path: Path, text: str, where: str, what: str) -> None:
    missing = {entry.where: entry.what for entry in model(tmp_path, f"{FUNCTION}{text}\n").missing}
    assert what in missing[where]


def test_the_plan_says_that_variables_of_a_file_become_readable_in_the_stack(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TOKEN=1\n")
    made = model(tmp_path, f'{FUNCTION}environment_file = ".env"\n')
    assert function_of(made, "f")["Environment"]["Variables"] == {"TOKEN": "1"}
    said = {entry.where: entry.what for entry in made.missing}
    assert "plain values in the template and the stack" in said["functions.f.environment_file"]


def test_code_with_boto3_gets_the_declared_statements_and_the_objects_that_it_is_notified_of(tmp_path: Path) -> None:
    text = (
        '[functions.f]\nhandler = "odd.handler"\n[buckets.uploads]\nnotify = [{ function = "f", prefix = "in/" }]\n'
        '[[deploy.aws.statements]]\nactions = ["bedrock:InvokeModel"]\nresources = ["*"]\nfunction = "f"\n'
    )
    found = allowed(model(tmp_path, text, odd="import boto3\ndef handler(e, c): pass\n"), "FRole")
    assert found["bedrock:InvokeModel"] == ["*"]
    assert [entry["Fn::Sub"][-5:] for entry in found["s3:GetObject"]] == ["/in/*"]


@pytest.mark.parametrize(
    ("first", "second", "refused"),
    [
        ('prefix = "in/"', 'suffix = ".png"', True),
        ('prefix = "in/"', 'prefix = "in/a/"', True),
        ('prefix = "in/", suffix = ".png"', 'prefix = "in/", suffix = ".txt"', False),
        ('prefix = "in/"', 'prefix = "out/"', False),
        ('events = ["s3:ObjectCreated:*"]', 'events = ["s3:ObjectRemoved:*"]', False),
        ('events = ["s3:ObjectCreated:*"]', 'events = ["s3:ObjectCreated:Put"]', True),
    ],
)
def test_notifications_that_s3_would_refuse_are_refused_with_the_reason(
    tmp_path: Path, first: str, second: str, refused: bool
) -> None:
    text = FUNCTION + (f'[buckets.uploads]\nnotify = [{{ function = "f", {first} }}, {{ function = "f", {second} }}]\n')
    if refused:
        with pytest.raises(DeploymentError, match="S3 notifies one function of an object"):
            model(tmp_path, text)
    else:
        assert len(of_type(model(tmp_path, text), "AWS::S3::Bucket")) == 1


def test_signs_in_a_prefix_stand_for_themselves(tmp_path: Path) -> None:
    text = FUNCTION + '[buckets.uploads]\nnotify = [{ function = "f", prefix = "in*${x}?/" }]\n'
    found = allowed(
        model(tmp_path, text.replace("plain", "odd"), odd="import boto3\ndef handler(e, c): pass\n"), "FRole"
    )
    [entry] = found["s3:GetObject"]
    assert entry["Fn::Sub"].endswith("/in${!*}${!$}{x}${!?}/*")


def test_the_bucket_of_an_event_may_be_one_that_exists_already(tmp_path: Path) -> None:
    text = FUNCTION + '[buckets.far]\nurl = "s3://far-away/in"\nnotify = [{ function = "f" }]\n'
    code = 'import thawd\ndef handler(e, c): thawd.bucket(e["Records"][0]["s3"]["bucket"]["name"]).read("k")\n'
    found = allowed(model(tmp_path, text.replace("plain", "odd"), odd=code), "FRole")
    assert found["s3:GetObject"] == [{"Fn::Sub": "arn:${AWS::Partition}:s3:::far-away/in/*"}]


def test_tables_and_buckets_that_exist_are_used_where_they_are(tmp_path: Path) -> None:
    text = (
        '[functions.f]\nhandler = "odd.handler"\n[tables.theirs]\nurl = "dynamodb://rows?region=eu-west-1"\n'
        '[buckets.far]\nurl = "s3://far-away/in"\n'
    )
    code = 'import thawd\ndef handler(e, c): thawd.table("theirs").get(thawd.bucket("far").read("in/x"))\n'
    made = model(tmp_path, text, odd=code)
    assert not {"AWS::S3::Bucket", "AWS::DynamoDB::Table"} & {it["Type"] for it in made.template["Resources"].values()}
    variables = function_of(made, "f")["Environment"]["Variables"]
    assert json.loads(variables["STACK_THAWD_TABLES"]) == {"theirs": ["rows", "", "eu-west-1"]}
    found = allowed(made, "FRole")
    table = "arn:${AWS::Partition}:dynamodb:eu-west-1:${AWS::AccountId}:table/rows"
    assert found["dynamodb:GetItem"] == found["dynamodb:DescribeTable"] == [{"Fn::Sub": table}]
    assert found["s3:GetObject"] == [{"Fn::Sub": "arn:${AWS::Partition}:s3:::far-away/in/*"}]


def test_names_that_look_alike_become_different_resources(tmp_path: Path) -> None:
    names = ("a-b", "a_b", "aB", "AB", "ab")
    made = model(tmp_path, "".join(f'[functions.{name}]\nhandler = "plain.handler"\n' for name in names))
    assert len(of_type(made, "AWS::Lambda::Function")) == len(names)


def test_layers_and_the_part_of_a_split_package_belong_to_the_stack(tmp_path: Path) -> None:
    placed = order(tmp_path, FUNCTION)
    code = Code(
        key="shop/code.zip",
        runtime="python3.12",
        handler="thawd_parts.handler",
        layers=(LayerCode(name="layer-1", key="shop/packages.zip"),),
        part="part-0.tar.gz",
        ephemeral_storage_mb=900,
    )
    made = make_model(msgspec.structs.replace(placed, code={"f": code}))
    function = function_of(made, "f")
    assert (function["Handler"], function["EphemeralStorage"]) == ("thawd_parts.handler", {"Size": 900})
    assets = "thawd-assets-${AWS::AccountId}-${AWS::Region}"
    assert function["Environment"]["Variables"] == {"PACKAGE_PARTS_URL": {"Fn::Sub": f"s3://{assets}/shop"}}
    part = f"arn:${{AWS::Partition}}:s3:::{assets}/shop/part-0.tar.gz"
    assert allowed(made, "FRole")["s3:GetObject"] == [{"Fn::Sub": part}]
    [layer] = of_type(made, "AWS::Lambda::LayerVersion")
    assert layer["Content"]["S3Key"] == "shop/packages.zip"
    [reference] = function["Layers"]
    assert reference["Ref"] in made.template["Resources"]


IMAGE = (
    '[functions.f]\nimage = "captions:1"\nimage_config = { command = ["app.handler"], working_directory = "/app" }\n'
)


def model_with_image(folder: Path, text: str = IMAGE) -> Model:
    placed = order(folder, text)
    return make_model(msgspec.structs.replace(placed, code={"f": Code(image="sha256:" + "0" * 64)}))


def test_a_container_image_is_named_by_its_digest_in_the_accounts_registry(tmp_path: Path) -> None:
    api = pytest.importorskip("cfnlint.api", reason="cfn-lint is not installed")
    arguments = pytest.importorskip("cfnlint.config").ManualArgs(regions=["us-east-1"])
    made = model_with_image(tmp_path)
    function = function_of(made, "f")
    registry = "${AWS::AccountId}.dkr.ecr.${AWS::Region}.${AWS::URLSuffix}"
    assert function["Code"] == {"ImageUri": {"Fn::Sub": f"{registry}/thawd-assets/shop@sha256:{'0' * 64}"}}
    assert (function["PackageType"], function["ImageConfig"]) == (
        "Image",
        {"Command": ["app.handler"], "WorkingDirectory": "/app"},
    )
    assert function["SnapStart"] == {"ApplyOn": "PublishedVersions"}
    assert not {"Runtime", "Handler", "Layers"} & function.keys()
    assert [entry.where for entry in made.missing] == ["functions.f.image"]
    assert [str(match) for match in api.lint(made.text, config=arguments)] == []


def test_every_stack_has_a_repository_of_its_own_with_a_name_that_ecr_takes() -> None:
    names = [naming.repository_name(stack) for stack in ("shop", "Shop", "SHOP", "a-b", "a--b", "a-b-")]
    assert names[0] == "thawd-assets/shop"
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"thawd-assets/[a-z0-9]+(-[a-z0-9]+)*", name) for name in names)


def test_a_single_variable_that_cloudformation_would_take_for_a_reference_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match="a single variable with the name Ref"):
        model(tmp_path, FUNCTION + 'environment = { Ref = "secret" }\n')


def test_a_configuration_without_functions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match="declares no functions"):
        make_model(order(tmp_path, "[tables.rows]\n"))


EXAMPLES = {
    ("digits", "classify"): {
        "dynamodb:PutItem": ["table/shop-labels"],
        "s3:GetObject": [":::shop-uploads-*/*"],
        "s3:ListBucket": [":::shop-uploads-*"],
    },
    ("stream", "stream"): {
        "s3:GetObject": [":::shop-images-*/*"],
        "s3:ListBucket": [":::shop-images-*"],
        "s3:PutObject": [":::shop-results-*/*"],
    },
    ("stream", "catalogue"): {
        "dynamodb:PutItem": ["table/shop-products"],
        "s3:GetObject": [":::shop-products-*/*"],
        "s3:ListBucket": [":::shop-products-*"],
    },
}
"""What the code of the examples calls, by example and function: actions with the ends of their resources."""


@pytest.mark.parametrize("example", ["digits", "stream"])
def test_roles_of_the_examples_allow_what_their_code_calls(example: str, tmp_path: Path) -> None:
    folder = Path(__file__).parents[2] / "examples" / example
    shutil.copytree(folder / "function", tmp_path / "function")
    # The priming event is made by the example's program.
    (tmp_path / "thawd.toml").write_text((folder / "thawd.toml").read_text().replace('prime = "prime.json"', ""))
    settings = config.load(tmp_path / "thawd.toml", environ={})
    code = {
        name: Code(key="shop/code.zip", runtime="python3.12", uses=read_uses(function.code, function.handler))
        for name, function in settings.functions.items()
    }
    placed = Order(settings=settings, stack="shop", code=code, layer_key="shop/l.zip")
    made = make_model(placed)
    for (_, function), expected in EXAMPLES.items():
        if (example, function) in EXAMPLES:
            found = allowed(made, f"{function.capitalize()}Role")
            assert {action: _ends(found[action]) for action in found if not action.startswith("logs:")} == expected


def _ends(resources: list[Any]) -> list[str]:
    texts = [resource["Fn::Sub"].replace("${AWS::AccountId}-${AWS::Region}", "*") for resource in resources]
    return sorted(text[text.index(":::shop") if ":::shop" in text else text.index("table/") :] for text in texts)


def test_x_ray_traces_the_functions_that_are_active_and_their_roles_allow_it(tmp_path: Path) -> None:
    active = '[functions.g]\nhandler = "plain.handler"\ntracing = "Active"\n'
    made = model(tmp_path, FUNCTION + active)
    modes = {name: function_of(made, name).get("TracingConfig") for name in ("f", "g")}
    assert modes == {"f": None, "g": {"Mode": "Active"}}
    assert "xray:PutTraceSegments" in allowed(made, "GRole") and "xray:PutTraceSegments" not in allowed(made, "FRole")
