"""serverless.yml: no property is ignored in silence; packages, authorizers, API keys and plugins."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest

from thawd.deploy.projects.artifacts import BuildTools, package
from thawd.deploy.projects.deployment import prepared
from thawd.deploy.projects.reading import read_project
from thawd.deploy.projects.stacks import Project, ProjectError, ProjectOptions

pytestmark = pytest.mark.in_memory

_ODD = """
service: odd
constructs: {}
surprise: 1
plugins: {modules: [serverless-offline, serverless-esbuild, serverless-python-requirements, mine]}
custom:
  serverless-offline: {httpPort: 4000}
  pythonRequirements: {fileName: needs.txt, layer: true, usePoetry: false, zip: true}
provider: {name: aws, runtime: python3.12, region: eu-west-1, logRetentionInDays: 3, profile: me, colour: red}
package: {paterns: []}
functions:
  f:
    handler: a.b
    timeOut: 3
    disableLogs: true
    layers: [!Ref PythonRequirementsLambdaLayer, !Ref OwnDashoneLambdaLayer]
    url: {cors: true, colour: red}
    events:
      - http: {path: a, method: get, async: true, request: {}}
      - sqs: {arn: !GetAtt Q.Arn, speed: 1}
      - msk: {arn: x}
      - rain: {}
layers: {own-one: {path: layer, allowedAccounts: ['*']}}
"""


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def read_service(text: str) -> Project:
        (tmp_path / "serverless.yml").write_text(text)
        return read_project(tmp_path / "serverless.yml", ProjectOptions())

    return read_service


def _resources(project: Project) -> dict[str, Any]:
    found: dict[str, Any] = project.stacks[0].document["Resources"]
    return found


def _not_installed(requirements: Path, runtime: str, architecture: str | None) -> Path:
    raise AssertionError(requirements)


def _packaged(project: Project, packages: Any = _not_installed) -> dict[str, list[str]]:
    """The names of the files of each function's and layer's package."""
    made = package(project.stacks[0], BuildTools(packages, lambda image: image.repository))
    names = {}
    for logical_id, resource in made.document["Resources"].items():
        place = resource["Properties"].get("CodeUri") or resource["Properties"].get("ContentUri")
        if place:
            content = made.objects[place.removeprefix("s3://thawd-artifacts/")]
            names[logical_id] = zipfile.ZipFile(io.BytesIO(content)).namelist()
    return names


def test_each_property_that_is_left_out_is_named_once_with_what_is_missing(read: Any) -> None:
    project = read(_ODD)
    assert list(project.notes) == [
        "custom.serverless-offline has no effect: thawd serves the service, with its own options",
        "the plugin serverless-esbuild is not run, and the functions are packaged as they lie there: bundle them "
        "yourself, and name the folder or zip file in package.artifact",
        "custom.pythonRequirements.layer has no effect: the packages go into each function's package",
        "custom.pythonRequirements.zip has no effect: the packages are not compressed within the package",
        "the plugin mine is not run",
        "constructs is left out: thawd does not run serverless-lift; declare the resources themselves",
        "surprise is left out: thawd does not know this property",
        "provider.logRetentionInDays is left out: thawd keeps logs as its own configuration says",
        "provider.colour is left out: thawd does not know this property",
        "package.paterns is left out: thawd does not know this property",
        "provider.region is eu-west-1, and thawd serves us-east-1",
        "layers.own-one.allowedAccounts is left out: there are no other accounts",
        "functions.f.timeOut is left out: thawd does not know this property",
        "functions.f.disableLogs is left out: the function's log is kept",
        "functions.f.url.colour is left out: thawd does not know this property",
        "functions.f.events.http.async is left out: the function is invoked synchronously",
        "functions.f.events.http.request is left out: requests are neither validated nor mapped",
        "functions.f.events.sqs.speed is left out: thawd does not know this property",
        "f: events of the kind msk are left out: thawd reads no Kafka",
        "f: events of the kind rain are left out: thawd does not know this event",
    ]
    assert _resources(project)["FLambdaFunction"]["Properties"]["Layers"] == [{"Ref": "OwnDashoneLambdaLayer"}]
    assert project.stacks[0].packages["FLambdaFunction"].requirements == "needs.txt"


def test_the_last_pattern_that_matches_decides_whether_a_file_is_packaged(read: Any, tmp_path: Path) -> None:
    for name in (
        "app.py",
        "data/a.csv",
        "data/keep/b.csv",
        "docs/x.md",
        "own/f.py",
        ".env",
        "layer/a.txt",
        "layer/b.md",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    text = """
service: x
useDotenv: true
provider: {name: aws, runtime: python3.12}
package: {patterns: ['!data/**', 'data/keep/**', '!**/*.{md,rst}', '!layer/**'], exclude: [own/**], individually: %s}
functions:
  shared: {handler: app.f}
  single: {handler: app.f, package: {patterns: ['!app.py', own/f.py, './docs/x.md']}}
layers: {l: {path: layer, package: {patterns: ['!*.md']}}}
"""
    project = read(text % "true")
    assert _packaged(project) == {
        "LLambdaLayer": ["a.txt"],
        "SharedLambdaFunction": ["app.py", "data/keep/b.csv"],
        "SingleLambdaFunction": ["data/keep/b.csv", "docs/x.md", "own/f.py"],
    }
    together = read(text % "false")
    assert _packaged(together)["SingleLambdaFunction"] == ["app.py", "data/keep/b.csv"]
    assert any("functions.single.package.patterns has no effect, as with Serverless" in note for note in together.notes)


def test_a_module_is_packaged_with_its_own_requirements(read: Any, tmp_path: Path) -> None:
    for name in ("one/app.py", "one/needs.txt", "one/test/t.py", "two/app.py", "packages/greeting.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "one/needs.txt").write_text("greeting\n")
    project = read("""
service: x
plugins: [serverless-python-requirements]
custom: {pythonRequirements: {fileName: needs.txt}}
provider: {name: aws, runtime: python3.12}
package: {individually: true, patterns: ['!one/test/**']}
functions: {a: {handler: app.f, module: one}, b: {handler: app.f, module: two}}
""")
    assert _packaged(project, lambda requirements, runtime, architecture: tmp_path / "packages") == {
        "ALambdaFunction": ["app.py", "greeting.py", "needs.txt"],
        "BLambdaFunction": ["app.py"],
    }


def test_authorizers_and_api_keys_protect_the_paths_of_both_kinds_of_api(read: Any) -> None:
    project = read("""
service: x
provider:
  name: aws
  runtime: python3.12
  apiGateway:
    apiKeys: [first, {name: second, value: 0123456789abcdefghij}]
    usagePlan: {quota: {limit: 5, period: DAY}, throttle: {burstLimit: 2, rateLimit: 1}}
  httpApi:
    payload: '1.0'
    cors: {allowedOrigins: 'https://a.example', maxAge: 3}
    authorizers:
      tokens: {identitySource: $request.header.Authorization, issuerUrl: 'https://i.example', audience: app}
      asked: {type: request, functionName: gate, enableSimpleResponses: true, identitySource: $request.header.X}
functions:
  gate: {handler: a.gate}
  f:
    handler: a.b
    events:
      - http: {path: a, method: get, authorizer: gate, cors: {origin: 'https://b.example', headers: [X-A], maxAge: 9}}
      - http: {path: b, method: get, private: true, authorizer: {name: gate, type: request, resultTtlInSeconds: 0}}
      - http: {path: c, method: get, authorizer: aws_iam}
      - http: {path: d, method: get, authorizer: {arn: 'arn:aws:cognito-idp:us-east-1:1:userpool/p', scopes: [s]}}
      - httpApi: {path: /a, method: get, authorizer: {name: tokens, scopes: [read]}}
      - httpApi: {path: /b, method: get, authorizer: asked}
      - httpApi: {path: /c, method: get, authorizer: {type: aws_iam}, timeout: 2}
""")
    assert project.notes == ()
    made = prepared(project.stacks[0], package(project.stacks[0], BuildTools(_not_installed, str))).resources
    rest, http = (made[name].raw_properties["Body"] for name in ("ApiGatewayRestApi", "HttpApi"))
    secured = {
        path: sorted(name for each in rest["paths"][path]["get"]["security"] for name in each) for path in rest["paths"]
    }
    assert secured == {"/a": ["gate"], "/b": ["api_key", "gate2"], "/c": ["AWS_IAM"], "/d": ["p"]}
    kinds = {
        name: each["x-amazon-apigateway-authtype"]
        for name, each in rest["securityDefinitions"].items()
        if name != "api_key"
    }
    assert kinds == {"gate": "custom", "gate2": "custom", "AWS_IAM": "awsSigv4", "p": "cognito_user_pools"}
    headers = rest["paths"]["/a"]["options"]["x-amazon-apigateway-integration"]["responses"]["default"]
    assert headers["responseParameters"]["method.response.header.Access-Control-Allow-Origin"] == "'https://b.example'"
    assert {each.type for each in made.values()} >= {"AWS::ApiGateway::UsagePlan", "AWS::ApiGateway::UsagePlanKey"}
    assert http["x-amazon-apigateway-cors"] == {"allowOrigins": ["https://a.example"], "maxAge": 3}
    assert [next(iter(http["paths"][path]["get"]["security"][0])) for path in ("/a", "/b", "/c")] == [
        "tokens",
        "asked",
        "AWS_IAM",
    ]
    integration = http["paths"]["/c"]["get"]["x-amazon-apigateway-integration"]
    assert (integration["payloadFormatVersion"], integration["timeoutInMillis"]) == ("1.0", 2000)


def test_settings_of_functions_become_those_of_sam(read: Any) -> None:
    project = read("""
service: x
provider: {name: aws, tracing: {lambda: true}, vpc: {securityGroupIds: [g], subnetIds: [s]}, s3: {up: {name: u-1}}}
functions:
  f:
    handler: a.b
    provisionedConcurrency: 2
    maximumRetryAttempts: 0
    maximumEventAge: 60
    onError: arn:aws:sns:us-east-1:000000000000:failed
    fileSystemConfig: {arn: 'arn:x', localMountPath: /mnt/x}
    condition: IsOn
    dependsOn: Q
    url: {authorizer: aws_iam, invokeMode: RESPONSE_STREAM, cors: {allowedOrigins: [a], allowCredentials: true}}
    events:
      - schedule: {rate: [rate(1 minute), cron(0 12 * * ? *)], name: n, enabled: false}
      - schedule: {method: scheduler, rate: rate(1 hour), timezone: Europe/Berlin, enabled: true}
      - eventBridge:
          eventBus: shop
          pattern: {source: [a]}
          inputTransformer: {inputPathsMap: {t: $.time}, inputTemplate: <t>}
      - stream: {arn: 'arn:aws:kinesis:us-east-1:0:stream/s', destinations: {onFailure: 'arn:aws:sqs:us-east-1:0:q'}}
      - sns: !Ref Topic
      - s3: up
  i: {image: {uri: 'i:1', command: [a.b], workingDirectory: /w}}
""")
    resources = _resources(project)
    function = resources["FLambdaFunction"]
    properties = function["Properties"]
    assert (function["Condition"], function["DependsOn"]) == ("IsOn", ["Q"])
    assert (properties["AutoPublishAlias"], properties["Tracing"]) == ("provisioned", "Active")
    assert properties["EventInvokeConfig"] == {"MaximumEventAgeInSeconds": 60, "MaximumRetryAttempts": 0}
    assert properties["DeadLetterQueue"]["Type"] == "SNS"
    assert properties["VpcConfig"] == {"SecurityGroupIds": ["g"], "SubnetIds": ["s"]}
    assert properties["FileSystemConfigs"] == [{"Arn": "arn:x", "LocalMountPath": "/mnt/x"}]
    assert properties["FunctionUrlConfig"] == {
        "AuthType": "AWS_IAM",
        "InvokeMode": "RESPONSE_STREAM",
        "Cors": {"AllowOrigins": ["a"], "AllowCredentials": True},
    }
    first, second, scheduler, rule, stream, topic, bucket = (
        each["Properties"] for each in properties["Events"].values()
    )
    assert [first, second] == [
        {"Schedule": "rate(1 minute)", "Enabled": False},
        {"Schedule": "cron(0 12 * * ? *)", "Enabled": False},
    ]
    assert (scheduler["State"], scheduler["ScheduleExpressionTimezone"]) == ("ENABLED", "Europe/Berlin")
    assert rule["EventBusName"] == {"Ref": "ShopEventBus"}
    assert resources["ShopEventBus"]["Type"] == "AWS::Events::EventBus"
    assert stream["DestinationConfig"]["OnFailure"] == {"Type": "SQS", "Destination": "arn:aws:sqs:us-east-1:0:q"}
    assert topic["Topic"] == {"Ref": "Topic"}
    assert resources[bucket["Bucket"]["Ref"]]["Properties"] == {"BucketName": "u-1"}
    assert resources["ILambdaFunction"]["Properties"]["ImageConfig"] == {"Command": ["a.b"], "WorkingDirectory": "/w"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("package: {patterns: '**'}", "package.patterns must be a list"),
        ("package: {patterns: ['!../x/**']}", "leads out of the service's folder"),
        ("custom: {a: '${strToBool(maybe)}'}", "must be true, false, 1 or 0"),
        (
            "functions: {f: {handler: a.b, events: [{http: {path: a, authorizer: g}}]}}",
            "the function g, which does not exist",
        ),
        ("functions: {f: {handler: a.b, events: [{httpApi: {path: a, authorizer: g}}]}}", "authorizers has no g"),
        ("functions: {f: {handler: a.b, events: [{http: {path: a, authorizer: {authorizerId: x}}}]}}", "authorizerId"),
    ],
)
def test_a_wrong_pattern_or_authorizer_is_refused(read: Any, text: str, words: str) -> None:
    functions = "" if text.startswith("functions") else "functions: {f: {handler: a.b}}"
    with pytest.raises(ProjectError) as refused:
        read(f"service: x\n{text}\n{functions}")
    assert words in refused.value.message
