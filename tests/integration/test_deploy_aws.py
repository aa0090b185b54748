"""`thawd deploy aws`: a configuration is deployed into the AWS of `thawd up --aws`, used, changed, deleted."""

from __future__ import annotations

import io
import json
import sys
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.clients import KEYS
from tests.integration.conftest import Running, eventually
from tests.integration.emulated import AwsAt
from thawd.cli.program import main
from thawd.deploy.aws.account import Access
from thawd.deploy.aws.stack import DeploymentError
from thawd.deploy.aws.stack_deployment import AwsAccount, DeployedStack

CODE = """
import os
from urllib.parse import unquote_plus

import thawd

COLOUR = os.environ["COLOUR"]

def handler(event, context):
    for record in event.get("Records", ()):
        name, key = record["s3"]["bucket"]["name"], unquote_plus(record["s3"]["object"]["key"])
        data = thawd.bucket(name).read(key)
        thawd.table("labels").put(key, {"bytes": len(data), "colour": COLOUR})
    return {"colour": COLOUR, "rows": sorted(key for key, item in thawd.table("labels").scan())}
"""
CONFIG = """
[functions.classify]
handler = "classify.handler"
environment = { COLOUR = "red" }
reserved_concurrency = 5
on_failure = "arn:aws:sqs:us-east-1:000000000000:failures"

[buckets.uploads]
notify = [{ function = "classify", suffix = ".png" }]

[tables.labels]

[routes]
"POST /classify" = "classify"

[schedules.nightly]
function = "classify"
schedule = "cron(0 2 * * ? *)"
"""

ONE_FUNCTION = '[functions.f]\nhandler = "plain.handler"\n'
NO_SUCH_QUEUE = '[[functions.f.sources]]\nsqs = "arn:aws:sqs:us-east-1:123456789012:theirs"\n'


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration to deploy."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name.upper(), value)
    (tmp_path / "classify.py").write_text(CODE)
    (tmp_path / "thawd.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def deploy(emulating: Running, stack: str, *arguments: str) -> Result:
    """Run ``thawd deploy aws`` in this process."""
    target = ["--stack", stack, "--region", "us-east-1", "--endpoint-url", emulating.url]
    return CliRunner().invoke(main, ["deploy", "aws", *arguments, *target])


def test_a_deployed_configuration_works_is_changed_and_leaves_nothing(emulating: Running, app: Path) -> None:
    aws = AwsAt(emulating.url)
    first = deploy(emulating, "shop", "--yes")
    assert first.exit_code == 0, first.output
    outputs = dict(line.split(": ", 1) for line in first.stdout.splitlines() if line.startswith(("Http", "Uploads")))
    functions = aws.client("lambda")
    found = functions.get_function_configuration(FunctionName="shop-classify", Qualifier="live")
    assert found["LoggingConfig"]["LogGroup"] == "/aws/lambda/shop-classify"
    assert functions.get_function_concurrency(FunctionName="shop-classify")["ReservedConcurrentExecutions"] == 5
    config = functions.get_function_event_invoke_config(FunctionName="shop-classify", Qualifier="live")
    failures = config["DestinationConfig"]["OnFailure"]["Destination"]
    assert failures == "arn:aws:sqs:us-east-1:000000000000:shop-failures"
    assert aws.client("dynamodb").describe_table(TableName="shop-labels")["Table"]["KeySchema"][0]["KeyType"] == "HASH"
    [group] = aws.client("logs").describe_log_groups(logGroupNamePrefix="/aws/lambda/shop-")["logGroups"]
    assert group["retentionInDays"] == 30
    schedule = aws.client("scheduler").get_schedule(Name="shop-nightly")
    assert schedule["Target"]["Arn"] == found["FunctionArn"]

    # The bucket invokes the function, whose code reads the object and writes a row with the package thawd.
    emulating.s3().put_object(Bucket=outputs["UploadsBucketName"], Key="cat.png", Body=b"four")

    def answered() -> Any:
        answer = deploy(emulating, "shop", "invoke", "classify")
        return json.loads(answer.stdout) if answer.exit_code == 0 else None

    eventually(lambda: (answered() or {}).get("rows") == ["cat.png"], what="the row")
    request = urllib.request.Request(outputs["HttpApiUrl"] + "/classify", data=b"{}", method="POST")
    with urllib.request.urlopen(request) as answer:
        assert json.load(answer) == {"colour": "red", "rows": ["cat.png"]}
    assert "REPORT RequestId" in deploy(emulating, "shop", "logs", "classify").stdout

    target = ["--remote", "--stack", "shop", "--region", "us-east-1", "--endpoint-url", emulating.url]
    measured = CliRunner().invoke(
        main, ["bench", "classify", "-n", "20", "-C", "4", "--expect-text", "cat.png", *target]
    )
    assert (measured.exit_code, "shop-classify in us-east-1: 20 requests" in measured.stdout) == (0, True), (
        measured.output
    )

    assert "stack shop: nothing to change" in deploy(emulating, "shop", "--plan").stdout
    (app / "thawd.toml").write_text(CONFIG.replace('"red"', '"blue"'))
    plan = json.loads(deploy(emulating, "shop", "--plan", "--json").stdout)
    kinds = sorted((change["action"], change["type"]) for change in plan["changes"])
    assert kinds == [
        *(("create", "AWS::Lambda::Version"), ("delete", "AWS::Lambda::Version")),
        *(("update", "AWS::Lambda::Alias"), ("update", "AWS::Lambda::Function")),
    ]
    assert deploy(emulating, "shop", "--yes").exit_code == 0
    assert answered() == {"colour": "blue", "rows": ["cat.png"]}
    assert "stack shop: nothing to change" in deploy(emulating, "shop", "--plan").stdout

    refused = deploy(emulating, "shop", "destroy", "--yes")
    assert refused.exit_code == 1
    assert "shop-labels, shop-uploads-000000000000-us-east-1 would be deleted" in refused.output
    assert deploy(emulating, "shop", "destroy", "--yes", "--delete-data").exit_code == 0
    assert deploy(emulating, "shop", "status").exit_code == 1
    assert functions.list_functions()["Functions"] == []
    assert functions.list_layers()["Layers"] == []
    assert emulating.s3().list_buckets()["Buckets"] == []
    assert aws.client("dynamodb").list_tables()["TableNames"] == []
    assert aws.client("iam").list_roles()["Roles"] == []
    assert aws.client("logs").describe_log_groups()["logGroups"] == []
    assert "QueueUrls" not in aws.client("sqs").list_queues()
    assert aws.client("scheduler").list_schedules()["Schedules"] == []


def test_a_first_deployment_that_fails_says_why_and_leaves_no_stack(emulating: Running, app: Path) -> None:
    # A function of this name belongs to somebody else.
    emulating.client().create_function(
        FunctionName="broken-classify",
        Runtime=f"python{sys.version_info[0]}.{sys.version_info[1]}",
        Role="arn:aws:iam::000000000000:role/anybody",
        Handler="index.handler",
        Code={"ZipFile": _zip()},
    )
    try:
        failed = deploy(emulating, "broken", "--yes")
        assert failed.exit_code == 1
        assert "the stack broken was not deployed: " in failed.output
        assert "broken-classify" in failed.output.rpartition("not deployed")[2]
        assert deploy(emulating, "broken", "status").exit_code == 1
        assert "shop" not in json.dumps(AwsAt(emulating.url).client("dynamodb").list_tables()["TableNames"])
    finally:
        emulating.client().delete_function(FunctionName="broken-classify")
        deploy(emulating, "broken", "destroy", "--yes", "--delete-data")


def _zip() -> bytes:
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("index.py", "def handler(event, context): return 1\n")
        return file.getvalue()


def test_a_change_that_fails_says_why_and_leaves_everything_as_it_was(emulating: Running, app: Path) -> None:
    (app / "plain.py").write_text("def handler(event, context): return 1\n")
    (app / "thawd.toml").write_text(ONE_FUNCTION)
    assert deploy(emulating, "kept", "--yes").exit_code == 0
    (app / "thawd.toml").write_text(ONE_FUNCTION + "memory_mb = 256\n" + NO_SUCH_QUEUE)
    failed = deploy(emulating, "kept", "--yes")
    assert failed.exit_code == 1
    assert "FTheirsSource (AWS::Lambda::EventSourceMapping): " in failed.output
    assert failed.output.endswith("queue does not exist. Everything is as it was before\n")
    (app / "thawd.toml").write_text(ONE_FUNCTION)
    assert "stack kept: nothing to change" in deploy(emulating, "kept", "--plan").stdout
    assert emulating.client().get_function_configuration(FunctionName="kept-f")["MemorySize"] == 512
    assert deploy(emulating, "kept", "destroy", "--yes").exit_code == 0


def test_a_plan_that_is_out_of_date_and_stacks_of_other_tools_are_refused(emulating: Running, app: Path) -> None:
    account = AwsAccount(Access(region="us-east-1", endpoint_url=emulating.url))
    try:
        text = json.dumps({"Description": "x: deployed by thawd", "Resources": {"Q": {"Type": "AWS::SQS::Queue"}}})
        assert account.deploy("stale", text, planned=None, report=lambda event: None) == ()
        with pytest.raises(DeploymentError, match="was changed since the plan was made"):
            account.deploy("stale", text, planned=None, report=lambda event: None)
        stacks = AwsAt(emulating.url).client("cloudformation")
        stacks.create_stack(
            StackName="theirs", TemplateBody=json.dumps({"Resources": {"Q": {"Type": "AWS::SQS::Queue"}}})
        )
        assert "was not made by thawd" in deploy(emulating, "theirs", "--plan").output
        assert "was not made by thawd" in deploy(emulating, "theirs", "destroy", "--yes").output
        stacks.delete_stack(StackName="theirs")
        assert account.destroy("stale", deletes_data=False, report=lambda event: None)
        assert not account.destroy("stale", deletes_data=False, report=lambda event: None)
    finally:
        account.close()


def test_a_deployment_between_the_comparison_and_the_change_set_is_not_overwritten(
    emulating: Running, app: Path
) -> None:
    def text(queue: str) -> str:
        return json.dumps({"Description": "x: deployed by thawd", "Resources": {queue: {"Type": "AWS::SQS::Queue"}}})

    class Slow(AwsAccount):
        """Another deployment is complete after the stack was read once."""

        others = False

        def read_stack(self, name: str) -> DeployedStack | None:
            found = super().read_stack(name)
            if not self.others:
                self.others = True
                other.deploy(name, text("Theirs"), planned=json.loads(text("First")), report=lambda event: None)
            return found

    access = Access(region="us-east-1", endpoint_url=emulating.url)
    other, slow = AwsAccount(access), Slow(access)
    try:
        other.deploy("raced", text("First"), planned=None, report=lambda event: None)
        with pytest.raises(DeploymentError, match="the stack raced was changed since the plan was made"):
            slow.deploy("raced", text("Mine"), planned=json.loads(text("First")), report=lambda event: None)
        assert [each["resource"] for each in other.resources("raced")] == ["Theirs"]
        assert AwsAt(emulating.url).client("cloudformation").list_change_sets(StackName="raced")["Summaries"] == []
        assert other.destroy("raced", deletes_data=False, report=lambda event: None)
    finally:
        other.close()
        slow.close()


def test_the_file_of_a_template_is_private_even_if_it_was_not_before(app: Path) -> None:
    file = app / "stack.json"
    file.write_text("{}")
    file.chmod(0o644)
    done = CliRunner().invoke(main, ["deploy", "aws", "--template", str(file), "--untried"])
    assert done.exit_code == 0, done.output
    assert (file.stat().st_mode & 0o777, json.loads(file.read_text())["Description"][-17:]) == (
        0o600,
        "deployed by thawd",
    )


def test_without_a_terminal_nothing_is_deployed_unless_it_is_said(emulating: Running, app: Path) -> None:
    refused = deploy(emulating, "asked")
    assert refused.exit_code == 1
    assert "add --yes to deploy" in refused.output
    assert deploy(emulating, "asked", "status").exit_code == 1


def test_options_before_a_command_count_for_it_or_are_refused(emulating: Running, app: Path) -> None:
    target = ["--stack", "none", "--region", "us-east-1", "--endpoint-url", emulating.url]
    found = CliRunner().invoke(main, ["deploy", "aws", *target, "status"])
    assert "there is no stack none in us-east-1" in found.output
    refused = CliRunner().invoke(main, ["deploy", "aws", "--plan", "destroy", *target])
    assert refused.exit_code == 2
    assert "--plan belongs to thawd deploy aws itself, not to destroy" in refused.output
