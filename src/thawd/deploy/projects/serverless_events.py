"""Events of serverless.yml as events of SAM, and the resources that they need.

Source: Serverless Framework documentation, "AWS - Events"; SAM developer guide, "EventSource".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from thawd.deploy.projects.stacks import ProjectError

REST_API, HTTP_API = "ApiGatewayRestApi", "HttpApi"
_NOT_ALPHANUMERIC = re.compile(r"[^A-Za-z0-9]")


@dataclass(slots=True)
class Generated:
    """What the events of all functions need.

    Attributes:
        resources: the template's resources, by logical id: those of the user, and those that events add.
        notes: what was left out.
        has_cors: whether a path of the REST API has CORS.
    """

    resources: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    has_cors: bool = False


def event_of(function: str, event: Any, generated: Generated) -> dict[str, Any] | None:
    """An event of SAM for one of serverless.yml.

    Args:
        function: the function's name, for messages.
        event: a name, or a map with one name and its options.
        generated: gets resources and notes.

    Returns:
        None if the event was left out; a note says so.

    Raises:
        ProjectError: the event is malformed.
    """
    if isinstance(event, str):
        event = {event: {}}
    if not isinstance(event, dict) or not event:
        raise ProjectError(f"serverless.yml: functions.{function}.events: {event!r} is no event")
    kind, options = next(iter(event.items()))
    makers = {
        "http": _rest, "httpApi": _http, "s3": _s3, "sqs": _sqs, "sns": _sns, "schedule": _schedule, "stream": _stream,
        "eventBridge": _bridge, "cloudwatchEvent": _bridge, "cloudwatchLog": _log,
    }  # fmt: skip
    maker = makers.get(kind)
    if maker is None:
        generated.notes.append(f"{function}: events of the kind {kind} are left out: thawd does not read them")
        return None
    return maker(function, options, generated)


def capitalised(name: str) -> str:
    """A name as Serverless writes it into logical ids: letters and digits, the first letter capital."""
    text = _NOT_ALPHANUMERIC.sub("", name)
    return text[:1].upper() + text[1:]


def _options(function: str, kind: str, given: Any, main: str) -> dict[str, Any]:
    """Options of an event, of which a text is the main one."""
    if isinstance(given, str):
        return {main: given}
    if not isinstance(given, dict) or main not in given:
        raise ProjectError(f"serverless.yml: functions.{function}.events.{kind} has no {main}")
    return given


def _route(function: str, kind: str, given: Any) -> tuple[str, str, dict[str, Any]]:
    """Method, path and options of an HTTP event: ``GET /path``, or a map."""
    options = dict(given) if isinstance(given, dict) else {}
    if isinstance(given, str):
        method, _, path = given.strip().partition(" ")
        options = {"method": method, "path": path.strip()}
    if not options.get("path") and options.get("method") != "*":
        raise ProjectError(f"serverless.yml: functions.{function}.events.{kind} has no path")
    path = str(options.get("path") or "")
    return str(options.get("method", "*")), path if path.startswith(("/", "*")) else f"/{path}", options


def _rest(function: str, given: Any, generated: Generated) -> dict[str, Any] | None:
    method, path, options = _route(function, "http", given)
    if str(options.get("integration", "lambda-proxy")).lower().replace("_", "-") not in ("lambda-proxy", "aws-proxy"):
        generated.notes.append(f"{function}: {path} is left out: thawd reads only the integration lambda-proxy")
        return None
    if options.get("authorizer") or options.get("private"):
        generated.notes.append(f"{function}: {path} has no authorizer here: everyone may call it")
    generated.has_cors = generated.has_cors or bool(options.get("cors"))
    generated.resources.setdefault(REST_API, {"Type": "AWS::Serverless::Api", "Properties": {}})
    method = "any" if method == "*" else method.lower()
    return {"Type": "Api", "Properties": {"Path": path, "Method": method, "RestApiId": {"Ref": REST_API}}}


def _http(function: str, given: Any, generated: Generated) -> dict[str, Any]:
    generated.resources.setdefault(HTTP_API, {"Type": "AWS::Serverless::HttpApi", "Properties": {}})
    properties: dict[str, Any] = {"ApiId": {"Ref": HTTP_API}}
    if given != "*":
        method, path, options = _route(function, "httpApi", given)
        if options.get("authorizer"):
            generated.notes.append(f"{function}: {path} has no authorizer here: everyone may call it")
        if path not in ("*", "/*"):
            properties |= {"Path": path, "Method": "any" if method == "*" else method.lower()}
    return {"Type": "HttpApi", "Properties": properties}


def _s3(function: str, given: Any, generated: Generated) -> dict[str, Any]:
    options = _options(function, "s3", given, "bucket")
    bucket = options["bucket"]
    if isinstance(bucket, dict):  # { Ref: Bucket }
        logical_id = bucket.get("Ref")
    else:
        logical_id = _named(generated.resources, "AWS::S3::Bucket", "BucketName", bucket)
    if logical_id is None:
        logical_id = f"S3Bucket{capitalised(str(bucket))}"
        generated.resources[logical_id] = {"Type": "AWS::S3::Bucket", "Properties": {"BucketName": bucket}}
    rules = [
        {"Name": name, "Value": text} for rule in options.get("rules", ()) for name, text in rule.items()
    ]  # fmt: skip
    properties: dict[str, Any] = {"Bucket": {"Ref": logical_id}, "Events": options.get("event", "s3:ObjectCreated:*")}
    if rules:
        properties["Filter"] = {"S3Key": {"Rules": rules}}
    return {"Type": "S3", "Properties": properties}


def _named(resources: Mapping[str, Any], kind: str, attribute: str, name: Any) -> str | None:
    """The resource of a type that has a name; None if the template has none."""
    for logical_id, resource in resources.items():
        if isinstance(resource, dict) and resource.get("Type") == kind:
            properties = resource.get("Properties")
            if isinstance(properties, dict) and properties.get(attribute) == name:
                return logical_id
    return None


_MAPPED = {
    "batchSize": "BatchSize",
    "maximumBatchingWindow": "MaximumBatchingWindowInSeconds",
    "batchWindow": "MaximumBatchingWindowInSeconds",
    "enabled": "Enabled",
    "startingPosition": "StartingPosition",
    "maximumRetryAttempts": "MaximumRetryAttempts",
    "maximumRecordAgeInSeconds": "MaximumRecordAgeInSeconds",
    "bisectBatchOnFunctionError": "BisectBatchOnFunctionError",
    "parallelizationFactor": "ParallelizationFactor",
    "tumblingWindowInSeconds": "TumblingWindowInSeconds",
}


def _mapping(options: Mapping[str, Any]) -> dict[str, Any]:
    """The properties that events of queues and streams share."""
    properties = {_MAPPED[name]: value for name, value in options.items() if name in _MAPPED}
    if "functionResponseType" in options:
        properties["FunctionResponseTypes"] = [options["functionResponseType"]]
    if "filterPatterns" in options:
        filters = [{"Pattern": json.dumps(each)} for each in options["filterPatterns"]]
        properties["FilterCriteria"] = {"Filters": filters}
    return properties


def _sqs(function: str, given: Any, generated: Generated) -> dict[str, Any]:
    arn = given if isinstance(given, dict) and "arn" not in given else None  # a function: { Fn::GetAtt: [...] }
    options = {"arn": arn} if arn else _options(function, "sqs", given, "arn")
    return {"Type": "SQS", "Properties": {"Queue": options["arn"], **_mapping(options)}}


def _stream(function: str, given: Any, generated: Generated) -> dict[str, Any] | None:
    options = _options(function, "stream", given, "arn")
    kind = options.get("type") or ("dynamodb" if ":dynamodb:" in str(options["arn"]) else "kinesis")
    types = {"dynamodb": "DynamoDB", "kinesis": "Kinesis"}
    if kind not in types:
        generated.notes.append(f"{function}: a stream of the type {kind} is left out: thawd does not read it")
        return None
    properties = {"StartingPosition": "TRIM_HORIZON", "Stream": options["arn"], **_mapping(options)}
    return {"Type": types[kind], "Properties": properties}


def _sns(function: str, given: Any, generated: Generated) -> dict[str, Any]:
    options = {"topicName": given} if isinstance(given, str) else dict(given or {})
    topic = options.get("arn") or options.get("topicName")
    if topic is None:
        raise ProjectError(f"serverless.yml: functions.{function}.events.sns has neither arn nor topicName")
    if isinstance(topic, str) and not topic.startswith("arn:"):
        found = _named(generated.resources, "AWS::SNS::Topic", "TopicName", topic)
        logical_id = found or f"SNSTopic{capitalised(topic)}"
        generated.resources.setdefault(logical_id, {"Type": "AWS::SNS::Topic", "Properties": {"TopicName": topic}})
        topic = {"Ref": logical_id}
    properties = {"Topic": topic}
    if "filterPolicy" in options:
        properties["FilterPolicy"] = options["filterPolicy"]
    return {"Type": "SNS", "Properties": properties}


def _schedule(function: str, given: Any, generated: Generated) -> dict[str, Any] | None:
    options = _options(function, "schedule", given, "rate")
    rates = options["rate"] if isinstance(options["rate"], list) else [options["rate"]]
    if len(rates) != 1:
        generated.notes.append(f"{function}: of a schedule with several rates, thawd runs the first, {rates[0]}")
    is_scheduler = options.get("method") == "scheduler"
    properties: dict[str, Any] = {("ScheduleExpression" if is_scheduler else "Schedule"): rates[0]}
    if "enabled" in options and not is_scheduler:
        properties["Enabled"] = options["enabled"]
    if "input" in options:
        given_input = options["input"]
        properties["Input"] = given_input if isinstance(given_input, str) else json.dumps(given_input)
    for name, attribute in (("name", "Name"), ("description", "Description")):
        if name in options:
            properties[attribute] = options[name]
    return {"Type": "ScheduleV2" if is_scheduler else "Schedule", "Properties": properties}


def _bridge(function: str, given: Any, generated: Generated) -> dict[str, Any]:
    options = given if isinstance(given, dict) else {}
    if "schedule" in options:
        return {"Type": "Schedule", "Properties": {"Schedule": options["schedule"]}}
    pattern = options.get("pattern", options.get("event"))
    if not isinstance(pattern, dict):
        raise ProjectError(f"serverless.yml: functions.{function}.events: an event of EventBridge needs a pattern")
    properties: dict[str, Any] = {"Pattern": pattern}
    for name, attribute in (("eventBus", "EventBusName"), ("inputPath", "InputPath")):
        if name in options:
            properties[attribute] = options[name]
    if "input" in options:
        properties["Input"] = json.dumps(options["input"])
    return {"Type": "EventBridgeRule", "Properties": properties}


def _log(function: str, given: Any, generated: Generated) -> dict[str, Any]:
    options = _options(function, "cloudwatchLog", given, "logGroup")
    properties = {"LogGroupName": options["logGroup"], "FilterPattern": options.get("filter", "")}
    return {"Type": "CloudWatchLogs", "Properties": properties}
