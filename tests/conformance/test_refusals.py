"""Requests that the Lambda API refuses: error code and status as AWS documents them. boto3's own validation is off."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from .cases import (
    ABSENT,
    ARN,
    CONFLICT,
    FOREIGN,
    MISSING,
    OPERATIONS_ON_A_FUNCTION,
    QUEUE,
    SHARED,
    STALE,
    TYPE,
    VALID,
    VALUE,
    Case,
    filters,
    mapped,
    named,
    new,
)
from .conftest import CODE, Lambda, zipped

# Observed on AWS: most operations say "Function not found", these say something else.
SAID_OF_AN_ABSENT_FUNCTION = {
    "PutFunctionEventInvokeConfig": "The function doesn't exist.",
    "UpdateFunctionEventInvokeConfig": "The function doesn't exist.",
    "ListFunctionEventInvokeConfigs": "The function doesn't exist.",
    "GetFunctionEventInvokeConfig": f"The function {ARN}{ABSENT}:$LATEST doesn't have an EventInvokeConfig",
    "DeleteFunctionEventInvokeConfig": f"The function {ARN}{ABSENT}:$LATEST doesn't have an EventInvokeConfig",
    "RemovePermission": f"No policy found for: {ARN}{ABSENT}",
    "GetPolicy": "The resource you requested does not exist.",
    "CreateFunctionUrlConfig": "Function does not exist",
    "UpdateFunctionUrlConfig": "Function does not exist",
    "GetFunctionUrlConfig": "The resource you requested does not exist.",
    "DeleteFunctionUrlConfig": "The resource you requested does not exist.",
    "ListFunctionUrlConfigs": "Function does not exist",
}
NOT_THERE = [
    Case(
        operation,
        {"FunctionName": ABSENT, **more},
        *MISSING,
        SAID_OF_AN_ABSENT_FUNCTION.get(operation, f"Function not found: {ARN}{ABSENT}"),
    )
    for operation, more in OPERATIONS_ON_A_FUNCTION.items()
]
OTHER_REGION = [
    Case(
        operation,
        {"FunctionName": f"arn:aws:lambda:eu-central-1:000000000000:function:{SHARED}", **more},
        *MISSING,
        "Functions from 'eu-central-1' are not reachable in this region ('us-east-1')",
    )
    for operation, more in OPERATIONS_ON_A_FUNCTION.items()
]
OTHER_ACCOUNT = [
    Case(operation, {"FunctionName": f"arn:aws:lambda:us-east-1:123456789012:function:{SHARED}", **more}, *FOREIGN)
    for operation, more in OPERATIONS_ON_A_FUNCTION.items()
]
MALFORMED = [
    Case(
        operation,
        {"FunctionName": "not a name!", **more},
        *VALID,
        "1 validation error detected: Value 'not a name!' at 'functionName' failed to satisfy constraint: Member must "
        "satisfy regular expression pattern: (arn:",
    )
    for operation, more in OPERATIONS_ON_A_FUNCTION.items()
]
TOO_LONG = [
    Case(operation, {"FunctionName": "x" * 300, **more}, *VALID, "Member must have length less than or equal to ")
    for operation, more in OPERATIONS_ON_A_FUNCTION.items()
]
CREATE = [
    Case(
        "CreateFunction", new(FunctionName=None), *VALID, "'functionName' failed to satisfy constraint: Member must not"
    ),
    Case("CreateFunction", new(Role=None), *VALID, "'role'"),
    Case("CreateFunction", new(Code=None), *VALID, "'code'"),
    Case("CreateFunction", new(FunctionName="x" * 65), *VALUE, "length less than or equal to 64"),
    Case("CreateFunction", new(FunctionName="x" * 141), *VALID, "length less than or equal to 140"),
    Case("CreateFunction", new(FunctionName="a/b"), *VALID, "regular expression pattern"),
    Case("CreateFunction", new(FunctionName="new:prod"), *VALUE),
    Case("CreateFunction", new(Role="me"), *VALID, "'role' failed to satisfy constraint: Member must satisfy regular"),
    Case("CreateFunction", new(Runtime="python1.0"), *VALUE, "Value python1.0 at 'runtime' failed to"),
    Case("CreateFunction", new(Runtime="PYTHON3.12"), *VALUE, "java8.al2] or be a valid ARN"),
    Case("CreateFunction", new(Runtime="provided"), *VALUE, "We recommend you use a supported runtime"),
    Case("CreateFunction", new(Runtime="python2.7"), *VALUE, "no longer supported"),
    Case("CreateFunction", new(Runtime=None), *VALUE, "mandatory parameters"),
    Case("CreateFunction", new(Handler=None), *VALUE, "mandatory parameters"),
    Case("CreateFunction", new(Handler="a b"), *VALID, "'handler'"),
    Case("CreateFunction", new(MemorySize=127), *VALID, "greater than or equal to 128"),
    Case("CreateFunction", new(MemorySize=10241), *VALUE, "10240"),
    Case("CreateFunction", new(MemorySize="much"), *TYPE),
    Case("CreateFunction", new(Timeout=0), *VALID, "greater than or equal to 1"),
    Case("CreateFunction", new(Timeout=901), *VALUE, "900"),
    Case("CreateFunction", new(Timeout=[3]), *TYPE),
    Case("CreateFunction", new(Description="x" * 257), *VALID, "length less than or equal to 256"),
    Case("CreateFunction", new(Code={}), *VALUE, "Please provide a source for function code"),
    Case("CreateFunction", new(Code={"ZipFile": b"no zip"}), *VALUE, "Could not unzip uploaded file"),
    Case("CreateFunction", new(Code={"ZipFile": b""}), *VALUE, "non-empty zip"),
    Case("CreateFunction", new(Code={"ZipFile": zipped()}), *VALUE, "non-empty zip"),
    Case("CreateFunction", new(Code={"S3Bucket": "code", "S3Key": "absent.zip"}), *VALUE, "NoSuchKey"),
    Case("CreateFunction", new(Code={"S3Bucket": "absent", "S3Key": "a.zip"}), *VALUE, "GetObject"),
    Case("CreateFunction", new(Code={"S3Bucket": "code", "S3Key": "../thawd.toml"}), *VALUE, "GetObject"),
    Case("CreateFunction", new(Code={"ImageUri": "1.dkr/x"}, PackageType="Image"), *VALUE, "don't provide Handler"),
    Case("CreateFunction", new(PackageType="Tar"), *VALID, "enum value set"),
    Case("CreateFunction", new(Environment={"Variables": {"1A": "x"}}), *VALID, "environment.variables"),
    Case("CreateFunction", new(Environment={"Variables": {"AWS_REGION": "x"}}), *VALUE, "reserved keys"),
    Case("CreateFunction", new(Environment={"Variables": {"BIG": "x" * 4096}}), *VALUE, "4KB"),
    Case(
        "CreateFunction",
        new(Layers=[f"arn:aws:lambda:us-east-1:000000000000:layer:none:{n}" for n in range(6)]),
        *VALUE,
        "Cannot reference more than 5 layers.",
    ),
    Case(
        "CreateFunction", new(Layers=["arn:aws:lambda:us-east-1:000000000000:layer:none:1"]), *VALUE, "does not exist"
    ),
    Case(
        "CreateFunction",
        new(Layers=["arn:aws:lambda:us-east-1:017000801446:layer:AWSLambdaPowertoolsPythonV2:32"]),
        "AccessDeniedException",
        403,
        "not authorized to perform: lambda:GetLayerVersion on resource",
    ),
    Case("CreateFunction", new(Layers=["none"]), *VALID, "Value '[none]' at 'layers' failed to"),
    Case("CreateFunction", new(Architectures=["x86_64", "arm64"]), *VALID),
    Case("CreateFunction", new(Architectures=["riscv"]), *VALID, "enum value set"),
    Case("CreateFunction", new(EphemeralStorage={"Size": 511}), *VALID, "greater than or equal to 512"),
    Case("CreateFunction", new(EphemeralStorage={"Size": 10241}), *VALUE, "10240"),
    Case("CreateFunction", new(EphemeralStorage={}), *VALID, "'ephemeralStorage.size'"),
    Case("CreateFunction", new(TracingConfig={"Mode": "Sometimes"}), *VALID, "tracingConfig.mode"),
    Case("CreateFunction", new(SnapStart={"ApplyOn": "Always"}), *VALID, "snapStart.applyOn"),
    Case("CreateFunction", new(LoggingConfig={"LogFormat": "XML"}), *VALID, "loggingConfig.logFormat"),
    Case("CreateFunction", new(LoggingConfig={"ApplicationLogLevel": "INFO"}), *VALUE, "LogFormat is JSON"),
    Case("CreateFunction", new(KMSKeyArn="key"), *VALID, "kMSKeyArn"),
    Case("CreateFunction", new(DeadLetterConfig={"TargetArn": "x"}), *VALID, "deadLetterConfig.targetArn"),
    Case("CreateFunction", new(DeadLetterConfig={"TargetArn": "arn:aws:s3:::b"}), *VALUE, "Invalid dead letter queue"),
    Case(
        "CreateFunction",
        new(DeadLetterConfig={"TargetArn": "arn:aws:sqs:us-east-1:000000000000:q.fifo"}),
        *VALUE,
        "FIFO SQS queue is not supported for dead letter configuration",
    ),
    Case(
        "UpdateFunctionConfiguration",
        named(DeadLetterConfig={"TargetArn": "arn:aws:sns:us-east-1:000000000000:t.fifo"}),
        *VALUE,
        "FIFO SNS topic is not supported for dead letter configuration",
    ),
    Case("CreateFunction", new(FunctionName=SHARED), *CONFLICT, "Function already exist: shared"),
    Case("CreateFunction", new(FunctionName="configured"), *CONFLICT, "already exist"),
    Case("CreateFunction", new(Runtime="java21"), *VALUE, "java21"),
]
UPDATE = [
    Case("UpdateFunctionConfiguration", named(MemorySize=1), *VALID, "memorySize"),
    Case("UpdateFunctionConfiguration", named(Timeout=1000), *VALUE, "900"),
    Case("UpdateFunctionConfiguration", named(RevisionId="other"), *STALE, "Revision Id"),
    Case("UpdateFunctionConfiguration", named(Runtime="python2.7"), *VALUE),
    Case(
        "UpdateFunctionConfiguration", named(Environment={"Variables": {"LAMBDA_TASK_ROOT": "x"}}), *VALUE, "reserved"
    ),
    Case("UpdateFunctionConfiguration", {"FunctionName": "shared:1", "Timeout": 4}, *VALUE, "Aliases and versions"),
    Case("UpdateFunctionConfiguration", {"FunctionName": "configured", "Timeout": 4}, *CONFLICT, "thawd.toml"),
    Case("UpdateFunctionCode", named(RevisionId="other", ZipFile=CODE), *STALE, "Revision Id"),
    Case("UpdateFunctionCode", named(), *VALUE, "Please provide a source"),
    Case("UpdateFunctionCode", named(ZipFile=b"x"), *VALUE, "Could not unzip"),
    Case("UpdateFunctionCode", {"FunctionName": "configured", "ZipFile": CODE}, *CONFLICT, "thawd.toml"),
    Case("DeleteFunction", {"FunctionName": "configured"}, *CONFLICT, "thawd.toml"),
    Case("DeleteFunction", named(Qualifier="1"), *CONFLICT, "aliases reference it: [live]"),
    Case("DeleteFunction", named(Qualifier="$LATEST"), *VALUE),
    Case("DeleteFunction", named(Qualifier="live"), *VALUE, "Deletion of aliases is not currently supported."),
    Case("PublishVersion", named(CodeSha256="x"), *VALUE, "different from current CodeSHA256"),
    Case("PublishVersion", named(RevisionId="other"), *STALE),
    Case("PublishVersion", named(Description="x" * 257), *VALID, "description"),
    Case("GetFunction", named(Qualifier="9"), *MISSING, f"{ARN}shared:9"),
    Case("GetFunction", named(Qualifier="prod"), *MISSING, f"{ARN}shared:prod"),
    Case("GetFunction", named(Qualifier="a b"), *VALID, "qualifier"),
    Case("GetFunction", {"FunctionName": "shared:1", "Qualifier": "2"}, *VALUE, "derived qualifier"),
    Case("GetFunctionConfiguration", named(Qualifier="9"), *MISSING),
    Case("ListFunctions", {"MaxItems": 0}, *VALID, "maxItems"),
    Case("ListFunctions", {"MaxItems": 10001}, *VALID, "maxItems"),
    Case("ListFunctions", {"Marker": "!"}, *VALUE, "pagination"),
    Case("ListFunctions", {"FunctionVersion": "SOME"}, *VALID, "functionVersion"),
    Case("ListVersionsByFunction", named(MaxItems=0), *VALID),
]
ALIASES = [
    Case("CreateAlias", named(Name="live", FunctionVersion="1"), *CONFLICT, "Alias already exists"),
    Case("CreateAlias", named(Name="a", FunctionVersion="9"), *MISSING, "Function not found"),
    Case("CreateAlias", named(Name="a"), *VALID, "functionVersion"),
    Case("CreateAlias", named(FunctionVersion="1"), *VALID, "'name'"),
    Case("CreateAlias", named(Name="1", FunctionVersion="1"), *VALID, "'name'"),
    Case("CreateAlias", named(Name="a b", FunctionVersion="1"), *VALID, "'name'"),
    Case("CreateAlias", named(Name="x" * 129, FunctionVersion="1"), *VALID, "128"),
    Case("CreateAlias", named(Name="a", FunctionVersion="live"), *VALID, "functionVersion"),
    Case(
        "CreateAlias",
        named(Name="a", FunctionVersion="$LATEST", RoutingConfig={"AdditionalVersionWeights": {"1": 0.5}}),
        *VALUE,
        "$LATEST is not supported",
    ),
    Case(
        "CreateAlias",
        named(Name="a", FunctionVersion="1", RoutingConfig={"AdditionalVersionWeights": {"1": 0.5}}),
        *VALUE,
        "already included",
    ),
    Case(
        "CreateAlias",
        named(Name="a", FunctionVersion="1", RoutingConfig={"AdditionalVersionWeights": {"2": 1.5}}),
        *VALID,
        "less than or equal to 1",
    ),
    Case(
        "CreateAlias",
        named(Name="a", FunctionVersion="1", RoutingConfig={"AdditionalVersionWeights": {"8": 0.1, "9": 0.1}}),
        *MISSING,
    ),
    Case("UpdateAlias", named(Name="none"), *MISSING, f"Alias not found: {ARN}shared:none"),
    Case("UpdateAlias", named(Name="live", FunctionVersion="9"), *MISSING),
    Case("UpdateAlias", named(Name="live", RevisionId="x"), *STALE),
    Case("GetAlias", named(Name="none"), *MISSING, f"Cannot find alias arn: {ARN}shared:none"),
    Case("ListAliases", named(MaxItems=0), *VALID),
]
CONCURRENCY = [
    Case(
        "PutFunctionConcurrency",
        {"FunctionName": "shared:1", "ReservedConcurrentExecutions": 1},
        *VALUE,
        "Please specify either a function name or an unqualified function ARN.",
    ),
    Case(
        "GetProvisionedConcurrencyConfig",
        named(Qualifier="none"),
        *MISSING,
        f"Cannot find alias arn: {ARN}shared:none",
    ),
    Case("GetProvisionedConcurrencyConfig", named(Qualifier="$LATEST"), *VALUE, "must be an alias or a published"),
    Case("PutFunctionConcurrency", named(), *VALID, "reservedConcurrentExecutions"),
    Case("PutFunctionConcurrency", named(ReservedConcurrentExecutions=-1), *VALID, "greater than or equal to 0"),
    Case("PutFunctionConcurrency", named(ReservedConcurrentExecutions=12), *VALUE, "UnreservedConcurrentExecution"),
    Case("PutFunctionConcurrency", {"FunctionName": "configured", "ReservedConcurrentExecutions": 1}, *CONFLICT),
    Case("PutProvisionedConcurrencyConfig", named(Qualifier="1"), *VALID, "provisionedConcurrentExecutions"),
    Case("PutProvisionedConcurrencyConfig", named(Qualifier="1", ProvisionedConcurrentExecutions=0), *VALID),
    Case("PutProvisionedConcurrencyConfig", named(ProvisionedConcurrentExecutions=1), *VALID, "qualifier"),
    Case(
        "PutProvisionedConcurrencyConfig",
        named(Qualifier="$LATEST", ProvisionedConcurrentExecutions=1),
        *VALUE,
        "unpublished function versions",
    ),
    Case("PutProvisionedConcurrencyConfig", named(Qualifier="1", ProvisionedConcurrentExecutions=13), *VALUE),
    Case("PutProvisionedConcurrencyConfig", named(Qualifier="9", ProvisionedConcurrentExecutions=1), *MISSING),
    Case(
        "GetProvisionedConcurrencyConfig",
        named(Qualifier="1"),
        "ProvisionedConcurrencyConfigNotFoundException",
        404,
        "No Provisioned Concurrency Config found",
    ),
]
EVENTS = [
    Case("PutFunctionEventInvokeConfig", named(), *VALUE, "at least one of error handling or destination setting."),
    Case("PutFunctionEventInvokeConfig", named(MaximumRetryAttempts=3), *VALID, "maximumRetryAttempts"),
    Case("PutFunctionEventInvokeConfig", named(MaximumRetryAttempts=-1), *VALID),
    Case("PutFunctionEventInvokeConfig", named(MaximumEventAgeInSeconds=59), *VALID, "maximumEventAgeInSeconds"),
    Case("PutFunctionEventInvokeConfig", named(MaximumEventAgeInSeconds=21601), *VALID),
    *(
        Case("PutFunctionEventInvokeConfig", named(DestinationConfig={outcome: {"Destination": arn}}), *VALUE, words)
        for outcome, arn, words in (
            ("OnSuccess", "arn:aws:s3:::failed", "DestinationConfig(onSuccess=OnSuccess(destination=arn:aws:s3:::fail"),
            ("OnFailure", "arn:aws:sqs:us-east-1:000000000000:q.fifo", "DestinationConfig(onSuccess=null, onFailure="),
            ("OnFailure", "arn:aws:sns:us-east-1:000000000000:t.fifo", "FIFO-type Amazon SNS topics aren't supported"),
            ("OnFailure", "arn:aws:kinesis:us-east-1:000000000000:stream/s", "is invalid."),
            ("OnFailure", "arn:aws:events:us-east-1:000000000000:rule/r", "is invalid."),
            ("OnFailure", "arn:aws:sqs:us-east-1:000000000000:a b", "is invalid."),
            ("OnFailure", "arn:aws:dynamodb:eu-west-1:000000000000:table/t", "is invalid."),
            ("OnFailure", "kafka://topic", "is invalid."),
            ("OnSuccess", f"{ARN}{SHARED}", "You can't specify the function as a destination for itself."),
            ("OnSuccess", f"{ARN}{SHARED}:live", "You can't specify the function as a destination for itself."),
            ("OnSuccess", f"{ARN}{ABSENT}", f"The destination ARN {ARN}{ABSENT} is invalid."),
            ("OnSuccess", f"{ARN}configured:9", f"The destination ARN {ARN}configured:9 is invalid."),
            ("OnSuccess", "arn:aws:lambda:eu-west-1:000000000000:function:configured", "is invalid."),
            ("OnSuccess", "arn:aws:lambda:us-east-1:111111111111:function:configured", "is invalid."),
        )
    ),
    Case("PutFunctionEventInvokeConfig", named(DestinationConfig={"OnFailure": {"Destination": "q"}}), *VALID),
    Case("PutFunctionEventInvokeConfig", named(Qualifier="9", MaximumRetryAttempts=1), *MISSING),
    Case("UpdateFunctionEventInvokeConfig", named(MaximumRetryAttempts=1), *MISSING, "EventInvokeConfig"),
    Case("GetFunctionEventInvokeConfig", named(), *MISSING, "doesn't have an EventInvokeConfig"),
    Case("DeleteFunctionEventInvokeConfig", named(), *MISSING),
    Case(
        "CreateEventSourceMapping", {"EventSourceArn": QUEUE, "FunctionName": ABSENT}, *VALUE, "Function does not exist"
    ),
    Case("CreateEventSourceMapping", mapped(FunctionName="shared:9"), *VALUE, "Function does not exist"),
    Case("CreateEventSourceMapping", {"EventSourceArn": QUEUE}, *VALID, "functionName"),
    Case("CreateEventSourceMapping", named(), *VALUE, "Unrecognized event source."),
    Case("CreateEventSourceMapping", named(EventSourceArn="queue"), *VALID, "eventSourceArn"),
    Case("CreateEventSourceMapping", named(EventSourceArn=f"{QUEUE}/x"), *VALUE, "not the ARN of an SQS queue"),
    Case(
        "CreateEventSourceMapping", named(EventSourceArn="arn:aws:sns:us-east-1:000000000000:t"), *VALUE, "Unrecognized"
    ),
    *(
        Case("CreateEventSourceMapping", named(EventSourceArn=arn), *VALUE, "Unsupported event source")
        for arn in (
            "arn:aws:kafka:us-east-1:000000000000:cluster/c/8f7d3a52-1c2d-4e5f-9a6b-7c8d9e0f1a2b-1",
            "arn:aws:mq:us-east-1:000000000000:broker:b:b-8f7d3a52-1c2d-4e5f-9a6b-7c8d9e0f1a2b",
            "arn:aws:rds:us-east-1:000000000000:cluster:c",
        )
    ),
    *(
        Case("CreateEventSourceMapping", named(EventSourceArn=arn), *VALUE, "Value null at 'startingPosition'")
        for arn in (
            "arn:aws:kinesis:us-east-1:000000000000:stream/s",
            "arn:aws:dynamodb:us-east-1:000000000000:table/t/stream/2026-01-01T00:00:00.000",
        )
    ),
    Case(
        "CreateEventSourceMapping",
        named(SelfManagedEventSource={"Endpoints": {"KAFKA_BOOTSTRAP_SERVERS": ["a.example:9092"]}}),
        *VALUE,
        "Unrecognized",
    ),
    Case("CreateEventSourceMapping", mapped(BatchSize=0), *VALID, "batchSize"),
    Case("CreateEventSourceMapping", mapped(BatchSize=10_001), *VALID, "batchSize"),
    Case("CreateEventSourceMapping", mapped(BatchSize="ten"), *TYPE),
    Case("CreateEventSourceMapping", mapped(BatchSize=11), *VALUE, "Maximum batch window in seconds must be greater"),
    Case(
        "CreateEventSourceMapping", mapped(MaximumBatchingWindowInSeconds=301), *VALID, "maximumBatchingWindowInSeconds"
    ),
    Case("CreateEventSourceMapping", mapped(MaximumBatchingWindowInSeconds=-1), *VALID),
    Case("CreateEventSourceMapping", mapped(ScalingConfig={"MaximumConcurrency": 1}), *VALID, "maximumConcurrency"),
    Case("CreateEventSourceMapping", mapped(ScalingConfig={"MaximumConcurrency": 1001}), *VALID),
    Case("CreateEventSourceMapping", mapped(FunctionResponseTypes=["Everything"]), *VALID, "functionResponseTypes"),
    Case("CreateEventSourceMapping", mapped(Enabled="yes"), *TYPE),
    Case("CreateEventSourceMapping", mapped(FilterCriteria=filters("{")), *VALUE, "Invalid filter pattern definition"),
    Case("CreateEventSourceMapping", mapped(FilterCriteria=filters('{"body": "x"}')), *VALUE, "Invalid filter pattern"),
    Case("CreateEventSourceMapping", mapped(FilterCriteria=filters(*['{"body": ["x"]}'] * 6)), *VALUE, "at most 5"),
    Case("CreateEventSourceMapping", mapped(FilterCriteria=filters("x" * 4097)), *VALID, "pattern"),
    Case("CreateEventSourceMapping", mapped(StartingPosition="LATEST"), *VALUE, "StartingPosition"),
    Case("CreateEventSourceMapping", mapped(ParallelizationFactor=2), *VALUE, "ParallelizationFactor"),
    Case("CreateEventSourceMapping", mapped(BisectBatchOnFunctionError=True), *VALUE, "BisectBatchOnFunctionError"),
    Case("CreateEventSourceMapping", mapped(EventSourceArn=f"{QUEUE}.fifo", BatchSize=11), *VALUE, "FIFO"),
    Case(
        "CreateEventSourceMapping",
        mapped(EventSourceArn=f"{QUEUE}.fifo", MaximumBatchingWindowInSeconds=1),
        *VALUE,
        "FIFO",
    ),
    Case("GetEventSourceMapping", {"UUID": "short"}, *VALID, "uUID"),
    Case("ListEventSourceMappings", {"MaxItems": 0}, *VALID, "maxItems"),
    Case("ListEventSourceMappings", {"Marker": "?"}, *VALUE, "pagination"),
    Case("ListEventSourceMappings", {"EventSourceArn": "queue"}, *VALID),
    Case("GetEventSourceMapping", {"UUID": "8f7d3a52-1c2d-4e5f-9a6b-7c8d9e0f1a2b"}, *MISSING),
    Case("DeleteEventSourceMapping", {"UUID": "8f7d3a52-1c2d-4e5f-9a6b-7c8d9e0f1a2b"}, *MISSING),
    Case("UpdateEventSourceMapping", {"UUID": "8f7d3a52-1c2d-4e5f-9a6b-7c8d9e0f1a2b"}, *MISSING),
]
PERMISSION = {"StatementId": "new", "Action": "lambda:InvokeFunction", "Principal": "s3.amazonaws.com"}
POLICIES = [
    Case("AddPermission", named(**{**PERMISSION, "StatementId": "s3"}), *CONFLICT, "already exists"),
    Case("AddPermission", named(**{**PERMISSION, "StatementId": "a b"}), *VALID, "statementId"),
    Case("AddPermission", named(**{**PERMISSION, "Action": "s3:Get"}), *VALID, "action"),
    Case("AddPermission", named(**{**PERMISSION, "SourceAccount": "12"}), *VALID, "sourceAccount"),
    Case("AddPermission", named(**PERMISSION, RevisionId="x"), *STALE),
    Case("AddPermission", named(**PERMISSION, Qualifier="9"), *MISSING),
    Case("AddPermission", named(StatementId="x", Action="lambda:InvokeFunction"), *VALID, "principal"),
    Case("RemovePermission", named(StatementId="none"), *MISSING, "not found"),
    Case("GetPolicy", named(Qualifier="1"), *MISSING, "The resource you requested does not exist"),
    Case("ListTags", {"Resource": f"{ARN}absent"}, *MISSING),
    Case("ListTags", {"Resource": "shared"}, "ValidationException", 400, "resource"),
    Case("TagResource", {"Resource": f"{ARN}shared"}, *VALID, "tags"),
    Case("TagResource", {"Resource": f"{ARN}shared:1", "Tags": {"a": "b"}}, *VALUE),
    Case(
        "TagResource",
        {"Resource": f"{ARN}shared", "Tags": {f"k{n}": "v" for n in range(51)}},
        *VALUE,
        "Number of tags exceeds",
    ),
    Case("TagResource", {"Resource": f"{ARN}shared", "Tags": {}}, *VALUE, "An error occurred and the request cannot"),
    Case("UntagResource", {"Resource": f"{ARN}shared", "TagKeys": []}, *VALID, "'tagKeys'"),
    Case("AddPermission", named(**PERMISSION, Qualifier="$LATEST"), *VALUE, "adding policies for $LATEST"),
    Case("AddPermission", named(**{**PERMISSION, "Principal": "nobody"}), *VALUE, "The provided principal was invalid"),
    Case("AddPermission", named(**PERMISSION, Qualifier="none"), *MISSING, f"Cannot find alias arn: {ARN}shared:none"),
    Case("UntagResource", {"Resource": f"{ARN}absent", "TagKeys": ["a"]}, *MISSING),
]
LAYERS = [
    Case("PublishLayerVersion", {"LayerName": "l"}, *VALID, "content"),
    Case("PublishLayerVersion", {"LayerName": "l", "Content": {}}, *VALUE, "source"),
    Case("PublishLayerVersion", {"LayerName": "l", "Content": {"ZipFile": b"x"}}, *VALUE, "Could not unzip"),
    Case("PublishLayerVersion", {"LayerName": "a b", "Content": {"ZipFile": CODE}}, *VALID, "layerName"),
    Case(
        "PublishLayerVersion",
        {"LayerName": "l", "Content": {"ZipFile": CODE}, "CompatibleRuntimes": ["cobol"]},
        *VALID,
        "compatibleRuntimes",
    ),
    Case("GetLayerVersion", {"LayerName": "none", "VersionNumber": 1}, *MISSING),
    Case("GetLayerVersion", {"LayerName": "none", "VersionNumber": 0}, *VALUE, "less than 1"),
    Case("GetLayerVersionByArn", {"Arn": "arn:aws:lambda:us-east-1:000000000000:layer:none:1"}, *MISSING),
    Case("GetLayerVersionByArn", {"Arn": "none"}, *VALID, "arn"),
    Case("GetLayerVersionPolicy", {"LayerName": "none", "VersionNumber": 1}, *MISSING),
    Case("ListLayers", {"CompatibleRuntime": "cobol"}, *VALID),
]
URLS = [
    Case("CreateFunctionUrlConfig", named(), *VALID, "authType"),
    Case("CreateFunctionUrlConfig", named(AuthType="KEY"), *VALID, "enum value set: [NONE, AWS_IAM]"),
    Case("CreateFunctionUrlConfig", named(AuthType="NONE", InvokeMode="FAST"), *VALID, "invokeMode"),
    Case("CreateFunctionUrlConfig", named(AuthType="NONE", Qualifier="1"), *VALID),
    Case("CreateFunctionUrlConfig", named(AuthType="NONE", Qualifier="none"), *MISSING),
    Case("CreateFunctionUrlConfig", named(AuthType="NONE", Cors={"MaxAge": 86401}), *VALID, "cors.maxAge"),
    Case("GetFunctionUrlConfig", named(), *MISSING),
    Case("UpdateFunctionUrlConfig", named(AuthType="NONE"), *MISSING),
    Case("DeleteFunctionUrlConfig", named(), *MISSING),
    Case("PutFunctionRecursionConfig", named(RecursiveLoop="Stop"), *VALID, "recursiveLoop"),
    Case("PutRuntimeManagementConfig", named(UpdateRuntimeOn="Never"), *VALID, "updateRuntimeOn"),
    Case("PutRuntimeManagementConfig", named(UpdateRuntimeOn="Manual"), *VALUE, "RuntimeVersionArn"),
]
INVOKE = [
    Case("Invoke", named(Qualifier="9"), *MISSING, f"Function not found: {ARN}shared:9"),
    Case("Invoke", named(Qualifier="none"), *MISSING),
    Case("Invoke", {"FunctionName": "x" * 65}, *MISSING, f"Function not found: {ARN}{'x' * 65}:$LATEST"),
    Case("Invoke", named(Qualifier="a b"), *VALID, "'qualifier'"),
    Case("Invoke", named(Qualifier="x" * 129), *VALID, "1 validation error detected"),
    Case("Invoke", named(InvocationType="Soon"), *VALUE),
    Case("Invoke", named(LogType="Head"), *VALUE),
    Case(
        "Invoke", named(Payload=b"{"), "InvalidRequestContentException", 400, "Could not parse request body into json"
    ),
    Case("Invoke", named(Payload=b"x" * 6_291_557), "RequestTooLargeException", 413),
    Case(
        "Invoke", named(InvocationType="Event", Payload=b'"' + b"x" * 1_048_576 + b'"'), "RequestTooLargeException", 413
    ),
    Case("Invoke", {"FunctionName": "shared:1", "Qualifier": "live"}, *VALUE, "derived qualifier"),
]
EVERYTHING = [
    *NOT_THERE, *OTHER_REGION, *OTHER_ACCOUNT, *MALFORMED, *TOO_LONG, *CREATE, *UPDATE, *ALIASES, *CONCURRENCY, *EVENTS,
    *POLICIES, *LAYERS, *URLS, *INVOKE,
]  # fmt: skip


def _id(case: Case) -> str:
    return f"{case.operation}-{case.code}-{case.words[:20]}"


@pytest.mark.parametrize("case", EVERYTHING, ids=_id)
def test_it_is_refused_as_on_aws(aws: Lambda, shared: str, case: Case) -> None:
    """Source: `API` and the operation's name, "Errors" and the constraints of the parameters."""
    from botocore import xform_name

    with pytest.raises(ClientError) as refused:
        getattr(aws.client, xform_name(case.operation))(**case.parameters)
    error = refused.value.response["Error"]
    assert (error["Code"], refused.value.response["ResponseMetadata"]["HTTPStatusCode"]) == (case.code, case.status), (
        error
    )
    assert case.words in (error.get("Message") or "")
    assert refused.value.response["ResponseMetadata"]["RequestId"]
