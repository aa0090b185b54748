"""The samples: where each one is, and what a user does before ``thawd up``.

How they were chosen: the files ``template.yaml`` of aws-samples/serverless-patterns, its CDK apps and those of
aws-samples/aws-cdk-examples, and the services of serverless/examples, as far as they are written in Python or
JavaScript, use services that thawd serves or emulates, and need no plugin; of these 30, 7, 6 and 12 were drawn by a
random generator with a fixed seed, before any was tried. Those that cannot work on AWS as they are were replaced by the
next of the draw. The other five are sample apps of AWS's developer guide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

REPOSITORIES = {
    "patterns": ("aws-samples/serverless-patterns", "fb7b5d06c27d8abb1bd35e52ab7523acf4baab7b"),
    "cdk-examples": ("aws-samples/aws-cdk-examples", "bccff1d2775e4b0bf777721c6b41c0107e122f73"),
    "serverless": ("serverless/examples", "22865199326008b9f863cb1ad28bfdddae9a7473"),
    "guide": ("awsdocs/aws-lambda-developer-guide", "8a681ab924e43870521f4e65caa78aa63c6376a6"),
}


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample.

    Attributes:
        repository: a key of REPOSITORIES.
        folder: its folder in the repository; its name in the table.
        kind: "SAM", "CDK, Python", "CDK, TypeScript", "Serverless" or "CloudFormation".
        project: the folder, in `folder`, where ``thawd up`` runs.
        file: the project's file, if it has another name than the tools' default.
        options: further options of ``thawd up``.
        edits: what the README asks to replace, and runtimes that AWS has withdrawn: a text and the new one, by file.
        commands: commands of the README that run before, in the project's folder.
        context: context values for ``cdk synth``.
        stacks: how many stacks a CDK app has.
    """

    repository: str
    folder: str
    kind: str
    project: str = "."
    file: str = ""
    options: tuple[str, ...] = ()
    edits: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    commands: tuple[str, ...] = ()
    context: Mapping[str, str] = field(default_factory=dict)
    stacks: int = 1


def _sam(name: str, *parameters: str, layers: tuple[str, ...] = (), **more: object) -> Sample:
    options = tuple(part for each in parameters for part in ("--parameters", each))
    options += tuple(part for each in layers for part in ("--layer", each))
    return Sample("patterns", name, "SAM", options=options, **more)  # type: ignore[arg-type]


_SAM = [
    _sam("apigw-api-key"),
    # The README: set the dates.
    _sam("apigw-custom-resource-policy", edits={"template.yaml": ("2022-09-30", "2099-09-30")}),
    _sam("apigw-data-validation"),
    _sam("apigw-dynamodb-kinesis-lambda"),
    _sam("apigw-http-api-lambda"),
    _sam("apigw-lambda-dynamodb-kinesis-lambda"),
    _sam("apigw-rest-api-eventbridge-sqs-sam"),
    _sam("apigw-rest-api-lambda-python"),
    _sam("apigw-rest-apigw-rest", "ApiKeyValue=0123456789abcdefghij"),
    _sam("apigw-sqs-lambda"),
    _sam(
        "apigw-sqs-lambda-ddb",
        commands=("pip install --quiet --target powertools/python 'aws-lambda-powertools[all]<3'",),
        layers=("AWSLambdaPowertoolsPythonV2=powertools",),
    ),
    _sam("apigw-usage-plans"),
    _sam("dynamodb-eventbridge", commands=("npm install --prefix publish",)),
    _sam("dynamodb-streams-lambda-eventbridge-sam-node"),
    _sam("eventbridge-cross-region/eventbus-destination"),
    # uuid, which its code imports, came with the versions of AWS's SDK of that time.
    _sam("eventbridge-schedule-remove-one-time-schedules", commands=("npm install --prefix src --omit=dev uuid@9",)),
    _sam("eventbridge-scheduled-lambda"),
    _sam("eventbridge-sns-lambda"),
    _sam("eventbridge-stepfunction-lambda-getfunctionstatus", "EmailAddress=someone@example.com"),
    _sam("kinesis-lambda-error-handling"),
    _sam("lambda"),
    _sam("lambda-destinations-sam"),
    _sam("lambda-durable-investigation-escalation", "OncallEmail=someone@example.com"),
    _sam("lambda-kinesis-lambda"),
    _sam("lambda-layer"),
    _sam("lambda-ssm-parameter"),
    _sam(
        "s3-lambda-resizing-node",
        "SourceBucketName=pictures-in",
        "DestinationBucketName=pictures-out",
        commands=(
            "npm install --prefix src",
            "mkdir -p graphicsmagick/bin && cp $(command -v gm) graphicsmagick/bin",  # of the machine
        ),
        layers=("graphicsmagick=graphicsmagick",),
    ),
    _sam("sqs-lambda-ddb-sam-ts", commands=("npm install --prefix src --omit=dev",)),
    _sam("sqs-lambda-nodejs-sam"),
    _sam("sqs-lambda-tenant-isolation-sam-py"),
]
_GUIDE = [
    Sample(
        "guide",
        "sample-apps/blank-nodejs",
        "SAM",
        commands=("mkdir -p lib/nodejs", "cp package.json lib/nodejs", "npm install --omit=dev --prefix lib/nodejs"),
    ),
    Sample(
        "guide",
        "sample-apps/blank-python",
        "SAM",
        # The X-Ray SDK that it requires imports pkg_resources, which Lambda's Python 3.8 has.
        commands=("pip install --quiet --target package/python -r function/requirements.txt 'setuptools<81'",),
    ),
    Sample(
        "guide",
        "sample-apps/file-processing-python",
        "SAM",
        edits={"template.yaml": ("EXAMPLE-BUCKET", "papers")},
    ),
    Sample("guide", "sample-apps/nodejs-apig", "SAM"),
    Sample("guide", "templates", "CloudFormation", file="function-inline.yml"),
]
_CDK = [
    Sample(
        "patterns",
        "adobe-eventbridge-lambda",
        "CDK, Python",
        options=("--parameters", "adobeEventBusName=default"),
    ),
    Sample("patterns", "automate-secrets-manager-tags", "CDK, Python"),
    Sample(
        "patterns",
        "kinesis-lambda-py-cdk",
        "CDK, Python",
        file="cdk.out",  # there is also a template.yaml, without resources
        edits={"svlsland/svlsland_stack.py": ("PYTHON_3_8", "PYTHON_3_12")},
    ),
    Sample(
        "patterns",
        "s3-large-deployments-cdk",
        "CDK, Python",
        commands=("mkdir -p assets", "cp README.md assets/large.txt"),
        context={"s3bucketname": "large-deployments", "filename": "large.txt"},
        stacks=2,
    ),
    Sample("patterns", "sqs-lambda-dynamodb-cdk", "CDK, Python"),
    Sample("cdk-examples", "python/lambda-cloudwatch-dashboard", "CDK, Python", stacks=2),
    Sample("cdk-examples", "python/lambda-cron", "CDK, Python"),
    Sample("cdk-examples", "typescript/custom-resource", "CDK, TypeScript"),
    Sample("cdk-examples", "typescript/lambda-manage-s3-event-notification", "CDK, TypeScript", stacks=3),
    Sample("patterns", "cdk-custom-resource-with-wait-condition", "CDK, TypeScript"),
    Sample(
        "patterns",
        "delayed-eventbridge-events",
        "CDK, TypeScript",
        project="cdk",
        edits={"lib/delayed-eventbridge-events-stack.ts": ("NODEJS_16_X", "NODEJS_22_X")},
    ),
    Sample(
        "patterns",
        "eventbridge-scheduled-lambda-cdk-typescript",
        "CDK, TypeScript",
        edits={"lib/eventbridge-scheduled-lambda-cdk-stack.ts": ("NODEJS_14_X", "NODEJS_22_X")},
        context={"interval_in_minutes": "1"},
    ),
    Sample("patterns", "sqs-lambda-ddb-cdk-ts", "CDK, TypeScript"),
]
_SERVERLESS = [
    Sample(
        "serverless",
        "aws-node-dynamodb-backup",
        "Serverless",
        edits={"serverless.yml": ("bucket: EXAMPLE", "bucket: table-backups")},
        commands=("npm install",),
    ),
    Sample("serverless", "aws-node-env-variables", "Serverless"),
    Sample("serverless", "aws-node-express-api", "Serverless", commands=("npm install",)),
    Sample("serverless", "aws-node-express-dynamodb-api", "Serverless", commands=("npm install",)),
    Sample("serverless", "aws-node-graphql-api-with-dynamodb", "Serverless", commands=("npm install",)),
    Sample("serverless", "aws-node-rest-api", "Serverless"),
    Sample("serverless", "aws-node-shared-gateway", "Serverless", project="products"),
    Sample("serverless", "aws-node-simple-http-endpoint", "Serverless"),
    Sample(
        "serverless",
        "aws-node-upload-to-s3-and-postprocess",
        "Serverless",
        edits={"serverless.yml": ("<your-bucket-name>", "uploaded-pictures")},
    ),
    Sample("serverless", "aws-python-pynamodb-s3-sigurl", "Serverless"),
    Sample("serverless", "aws-python-simple-http-endpoint", "Serverless"),
    Sample("patterns", "lambda-ssm-sls", "Serverless"),
]
SAMPLES = [*_SAM, *_GUIDE, *_CDK, *_SERVERLESS]
