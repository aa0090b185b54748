"""serverless.yml: its variables, functions and events become a template of SAM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from thawd.deploy.projects.reading import read_project
from thawd.deploy.projects.stacks import Project, ProjectError, ProjectOptions

pytestmark = pytest.mark.in_memory

_SERVICE = """
service: shop
frameworkVersion: '3'
plugins: [serverless-python-requirements, serverless-odd]
custom:
  table: rows-${sls:stage}
  sizes: {dev: 256, prod: 1024}
provider:
  name: aws
  runtime: python3.12
  stage: ${opt:stage, 'dev'}
  memorySize: ${self:custom.sizes.${sls:stage}}
  environment:
    TABLE: ${self:custom.table}
    SECRET: ${env:SECRET, 'none'}
    REGION: !Sub '${AWS::Region}'
    LEVEL: ${param:level, file(levels.yml):default}
  iam:
    role:
      statements: [{Effect: Allow, Action: 'dynamodb:*', Resource: !GetAtt Rows.Arn}]
functions:
  list-rows:
    handler: app.list
    timeout: 3
    layers: [!Ref SharedLambdaLayer]
    events:
      - httpApi: GET /rows/{id}
      - httpApi: '*'
      - http: {path: rows, method: post, cors: true}
  on_file:
    handler: app.file
    reservedConcurrency: 0
    events:
      - s3: {bucket: shop-files, event: s3:ObjectCreated:Put, rules: [{prefix: in/}, {suffix: .png}]}
      - s3: own-files
      - sqs: {arn: !GetAtt Queue.Arn, batchSize: 5, functionResponseType: ReportBatchItemFailures}
      - sns: news
      - schedule: {rate: rate(5 minutes), input: {a: 1}}
      - stream: {type: dynamodb, arn: !GetAtt Rows.StreamArn, filterPatterns: [{eventName: [INSERT]}]}
      - eventBridge: {pattern: {source: [shop]}}
      - websocket: $connect
layers: {shared: {path: layer}}
resources:
  Parameters: {Colour: {Type: String, Default: red}}
  Resources:
    Rows: {Type: AWS::DynamoDB::Table, Properties: {TableName: '${self:custom.table}'}}
    Queue: {Type: AWS::SQS::Queue}
    Own: {Type: AWS::S3::Bucket, Properties: {BucketName: own-files}}
  Outputs: {Function: {Value: !Ref ListDashrowsLambdaFunction}}
"""


@pytest.fixture
def read(tmp_path: Path) -> Any:
    (tmp_path / "levels.yml").write_text("default: info")

    def read_service(text: str = _SERVICE, **options: Any) -> Project:
        (tmp_path / "serverless.yml").write_text(text)
        return read_project(tmp_path / "serverless.yml", ProjectOptions(**options))

    return read_service


def _functions(project: Project) -> dict[str, Any]:
    resources = project.stacks[0].document["Resources"]
    return {name: each["Properties"] for name, each in resources.items() if "Function" in each["Type"]}


def test_functions_have_the_names_and_settings_that_serverless_gives_them(read: Any) -> None:
    project = read(variables={"SECRET": "s3cret"}, parameters={"level": "debug", "Colour": "blue"}, env="prod")
    stack = project.stacks[0]
    assert (stack.name, stack.parameters) == ("shop-prod", {"Colour": "blue"})
    listing = _functions(project)["ListDashrowsLambdaFunction"]
    assert (listing["FunctionName"], listing["MemorySize"], listing["Timeout"]) == ("shop-prod-list-rows", 1024, 3)
    assert listing["Environment"]["Variables"] == {
        "TABLE": "rows-prod",
        "SECRET": "s3cret",
        "REGION": {"Fn::Sub": "${AWS::Region}"},
        "LEVEL": "debug",
    }
    assert listing["Role"] == {"Fn::GetAtt": ["IamRoleLambdaExecution", "Arn"]}
    assert listing["Layers"] == [{"Ref": "SharedLambdaLayer"}]
    assert _functions(project)["OnUnderscorefileLambdaFunction"]["ReservedConcurrentExecutions"] == 0
    by_default = _functions(read())["ListDashrowsLambdaFunction"]["Environment"]["Variables"]
    assert (by_default["TABLE"], by_default["SECRET"], by_default["LEVEL"]) == ("rows-dev", "none", "info")


def test_the_stage_and_region_of_the_provider_have_the_frameworks_defaults(read: Any) -> None:
    text = "service: s\nprovider: {name: aws, runtime: python3.12, environment: {A: '${self:provider.stage}-"
    text += "${self:provider.region}'}}\nfunctions: {f: {handler: a.b}}\n"
    for env in (None, "prod"):
        made = _functions(read(text, env=env))["FLambdaFunction"]
        assert made["Environment"]["Variables"]["A"] == "dev-us-east-1"


def test_events_become_sams_events_with_the_resources_that_they_need(read: Any) -> None:
    project = read()
    resources = project.stacks[0].document["Resources"]
    listing, file = (_functions(project)[f"{name}LambdaFunction"] for name in ("ListDashrows", "OnUnderscorefile"))
    assert [each["Properties"] for each in listing["Events"].values()] == [
        {"ApiId": {"Ref": "HttpApi"}, "Path": "/rows/{id}", "Method": "get"},
        {"ApiId": {"Ref": "HttpApi"}},
        {"RestApiId": {"Ref": "ApiGatewayRestApi"}, "Path": "/rows", "Method": "post"},
    ]
    assert resources["ApiGatewayRestApi"]["Properties"]["StageName"] == "dev"
    assert "Cors" in resources["ApiGatewayRestApi"]["Properties"]
    kinds = [each["Type"] for each in file["Events"].values()]
    assert kinds == ["S3", "S3", "SQS", "SNS", "Schedule", "DynamoDB", "EventBridgeRule"]
    made, own, queue, topic, schedule, stream, _ = (each["Properties"] for each in file["Events"].values())
    assert made["Bucket"] == {"Ref": "S3BucketShopfiles"}
    assert resources["S3BucketShopfiles"]["Properties"] == {"BucketName": "shop-files"}
    assert made["Filter"]["S3Key"]["Rules"] == [{"Name": "prefix", "Value": "in/"}, {"Name": "suffix", "Value": ".png"}]
    assert own["Bucket"] == {"Ref": "Own"}
    assert (queue["BatchSize"], queue["FunctionResponseTypes"]) == (5, ["ReportBatchItemFailures"])
    assert topic["Topic"] == {"Ref": "SNSTopicNews"}
    assert schedule == {"Schedule": "rate(5 minutes)", "Input": '{"a": 1}'}
    assert stream["FilterCriteria"] == {"Filters": [{"Pattern": '{"eventName": ["INSERT"]}'}]}
    assert list(project.notes) == [
        "the plugin serverless-odd is not run",
        "on_file: events of the kind websocket are left out: thawd has no WebSocket APIs",
    ]


def test_images_of_the_service_are_built_and_others_named(read: Any) -> None:
    project = read("""
service: x
provider: {name: aws, ecr: {images: {own: {path: ./app, file: Other}}}}
functions: {a: {image: own}, b: {image: {name: own}}, c: {image: there:1}}
""")
    resources = project.stacks[0].document["Resources"]
    metadata = {"DockerContext": "./app", "Dockerfile": "Other", "DockerBuildArgs": {}}
    assert [resources[f"{name}LambdaFunction"]["Metadata"] for name in "AB"] == [metadata, metadata]
    assert resources["CLambdaFunction"]["Properties"]["ImageUri"] == "there:1"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("service: x\nprovider: {name: google}", "provider.name is google"),
        ("provider: {name: aws}", "service has no name"),
        ("service: x\nfunctions: {f: {}}", "functions.f has neither handler nor image"),
        ("service: x\nfunctions: {f: {handler: a.b, events: [{http: {method: get}}]}}", "events.http has no path"),
        ("service: x\nfunctions: {f: {handler: a.b, events: [3]}}", "3 is no event"),
        ("service: x\ncustom: {a: '${self:custom.b}'}", "${self:custom.b} has no value"),
        ("service: x\ncustom: {a: '${self:custom.b}', b: '${self:custom.a}'}", "a variable contains itself"),
        ("service: x\ncustom: {a: '${cf:other.Output}'}", "does not read ${cf:other.Output}"),
        ("service: x\ncustom: {a: '${file(a.js):b}'}", "a.js is a program"),
        ("service: x\ncustom: {a: 'x-${self:custom.b}', b: {c: d}}", "is no text"),
        ("service: [x", "YAML not well-formed"),
    ],
)
def test_a_malformed_service_is_refused(read: Any, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.js").touch()
    with pytest.raises(ProjectError) as refused:
        read(text)
    assert words in refused.value.message
