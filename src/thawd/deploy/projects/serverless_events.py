"""Events of serverless.yml as events of SAM, and the resources that they need.

Source: Serverless Framework documentation, "AWS - Events"; SAM developer guide, "EventSource".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thawd.deploy.projects import serverless_properties as known
from thawd.deploy.projects.serverless_apis import Generated, http_event, rest_event
from thawd.deploy.projects.stacks import ProjectError

_NOT_ALPHANUMERIC = re.compile(r"[^A-Za-z0-9]")

Maker = Callable[[str, Any, Generated], Sequence[dict[str, Any]]]
"""Makes events of SAM. It gets the function's name, the options, and what is generated."""


def events_of(function: str, event: Any, generated: Generated) -> Sequence[dict[str, Any]]:
    """Return the events of SAM for one of serverless.yml.

    Args:
        function: the function's name, for messages.
        event: a name, or a map with one name and its options.
        generated: gets resources and notes.

    Returns:
        Nothing if the event was left out; a note says so.

    Raises:
        ProjectError: the event is malformed.
    """
    if isinstance(event, str):
        event = {event: {}}
    if not isinstance(event, dict) or not event:
        raise ProjectError(f"serverless.yml: functions.{function}.events: {event!r} is no event")
    kind, options = next(iter(event.items()))
    if kind in _HTTP:
        made = _HTTP[kind](function, options, generated)
        return [] if made is None else [made]
    if kind not in _MAKERS:
        reason = known.EVENTS_MISSING.get(kind, "thawd does not know this event")
        generated.notes.append(f"{function}: events of the kind {kind} are left out: {reason}")
        return []
    section = known.EVENTS["eventBridge" if kind == "cloudwatchEvent" else kind]
    generated.notes += known.unread(section, f"functions.{function}.events.{kind}.", _not_intrinsic(options))
    return _MAKERS[kind](function, options, generated)


def capitalised(name: str) -> str:
    """Return a name as Serverless writes it into logical ids: letters and digits, the first letter capital."""
    text = _NOT_ALPHANUMERIC.sub("", name)
    return text[:1].upper() + text[1:]


def _not_intrinsic(options: Any) -> Any:
    """Return the options; nothing if they are an intrinsic function, such as ``Fn::GetAtt``."""
    is_intrinsic = isinstance(options, dict) and any(key == "Ref" or key.startswith("Fn::") for key in options)
    return None if is_intrinsic else options


def _options(function: str, kind: str, given: Any, main: str) -> dict[str, Any]:
    """Options of an event, of which a text or an intrinsic function is the main one."""
    if isinstance(given, str) or (given and _not_intrinsic(given) is None):
        return {main: given}
    if not isinstance(given, dict) or main not in given:
        raise ProjectError(f"serverless.yml: functions.{function}.events.{kind} has no {main}")
    return given


def _s3(function: str, given: Any, generated: Generated) -> Sequence[dict[str, Any]]:
    options = _options(function, "s3", given, "bucket")
    bucket = options["bucket"]
    if isinstance(bucket, dict):  # { Ref: Bucket }
        logical_id = bucket.get("Ref")
    else:
        logical_id = _bucket(str(bucket), generated)
        if options.get("existing"):
            generated.notes.append(f"{function}: the existing bucket {bucket} is not on this machine: thawd makes one")
    rules = [
        {"Name": name, "Value": text} for rule in options.get("rules", ()) for name, text in rule.items()
    ]  # fmt: skip
    properties: dict[str, Any] = {"Bucket": {"Ref": logical_id}, "Events": options.get("event", "s3:ObjectCreated:*")}
    if rules:
        properties["Filter"] = {"S3Key": {"Rules": rules}}
    return [{"Type": "S3", "Properties": properties}]


def _bucket(name: str, generated: Generated) -> str:
    """Return the logical id of a bucket: the user's, or one that events make with the settings of ``provider.s3``."""
    declared = generated.provider.get("s3")
    settings = declared.get(name) if isinstance(declared, dict) else None
    properties = _as_cloudformation(settings) if isinstance(settings, dict) else {}
    actual = properties.pop("Name", name)
    found = _named(generated.resources, "AWS::S3::Bucket", "BucketName", actual)
    logical_id = found or f"S3Bucket{capitalised(name)}"
    made = {"Type": "AWS::S3::Bucket", "Properties": {"BucketName": actual, **properties}}
    generated.resources.setdefault(logical_id, made)
    return logical_id


def _as_cloudformation(value: Any) -> Any:
    """Settings with the names that CloudFormation gives them: ``versioningConfiguration`` becomes
    ``VersioningConfiguration``."""
    if isinstance(value, dict):
        return {str(key)[:1].upper() + str(key)[1:]: _as_cloudformation(each) for key, each in value.items()}
    return [_as_cloudformation(each) for each in value] if isinstance(value, list) else value


def _named(resources: Mapping[str, Any], kind: str, attribute: str, name: Any) -> str | None:
    """Return the resource of a type that has a name; None if the template has none."""
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
    "startingPositionTimestamp": "StartingPositionTimestamp",
    "maximumRetryAttempts": "MaximumRetryAttempts",
    "maximumRecordAgeInSeconds": "MaximumRecordAgeInSeconds",
    "bisectBatchOnFunctionError": "BisectBatchOnFunctionError",
    "parallelizationFactor": "ParallelizationFactor",
    "tumblingWindowInSeconds": "TumblingWindowInSeconds",
}


def _mapping(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties that events of queues and streams share."""
    properties = {_MAPPED[name]: value for name, value in options.items() if name in _MAPPED}
    if "functionResponseType" in options:
        properties["FunctionResponseTypes"] = [options["functionResponseType"]]
    if "filterPatterns" in options:
        filters = [{"Pattern": json.dumps(each)} for each in options["filterPatterns"]]
        properties["FilterCriteria"] = {"Filters": filters}
    if "maximumConcurrency" in options:
        properties["ScalingConfig"] = {"MaximumConcurrency": options["maximumConcurrency"]}
    destinations = options.get("destinations")
    if isinstance(destinations, dict) and destinations.get("onFailure"):
        target = destinations["onFailure"]
        arn = target.get("arn", target) if isinstance(target, dict) else target
        is_topic = (isinstance(target, dict) and target.get("type") == "sns") or ":sns:" in str(arn)
        properties["DestinationConfig"] = {"OnFailure": {"Type": "SNS" if is_topic else "SQS", "Destination": arn}}
    return properties


def _sqs(function: str, given: Any, generated: Generated) -> Sequence[dict[str, Any]]:
    options = _options(function, "sqs", given, "arn")
    return [{"Type": "SQS", "Properties": {"Queue": options["arn"], **_mapping(options)}}]


def _stream(function: str, given: Any, generated: Generated) -> Sequence[dict[str, Any]]:
    options = _options(function, "stream", given, "arn")
    kind = options.get("type") or ("dynamodb" if ":dynamodb:" in str(options["arn"]) else "kinesis")
    types = {"dynamodb": "DynamoDB", "kinesis": "Kinesis"}
    if kind not in types:
        generated.notes.append(f"{function}: a stream of the type {kind} is left out: thawd does not read it")
        return []
    properties = {"StartingPosition": "TRIM_HORIZON", "Stream": options["arn"], **_mapping(options)}
    return [{"Type": types[kind], "Properties": properties}]


def _sns(function: str, given: Any, generated: Generated) -> Sequence[dict[str, Any]]:
    options = {"topicName": given} if isinstance(given, str) else dict(given or {})
    if _not_intrinsic(given) is None and given:
        options = {"arn": given}
    topic = options.get("arn") or options.get("topicName")
    if topic is None:
        raise ProjectError(f"serverless.yml: functions.{function}.events.sns has neither arn nor topicName")
    if isinstance(topic, str) and not topic.startswith("arn:"):
        found = _named(generated.resources, "AWS::SNS::Topic", "TopicName", topic)
        logical_id = found or f"SNSTopic{capitalised(topic)}"
        made = {"TopicName": topic}
        if "displayName" in options:
            made["DisplayName"] = options["displayName"]
        generated.resources.setdefault(logical_id, {"Type": "AWS::SNS::Topic", "Properties": made})
        topic = {"Ref": logical_id}
    properties = {"Topic": topic}
    for name, attribute in (("filterPolicy", "FilterPolicy"), ("filterPolicyScope", "FilterPolicyScope")):
        if name in options:
            properties[attribute] = options[name]
    return [{"Type": "SNS", "Properties": properties}]


def _schedule(function: str, given: Any, generated: Generated) -> Sequence[dict[str, Any]]:
    options = _options(function, "schedule", given, "rate")
    rates = options["rate"] if isinstance(options["rate"], list) else [options["rate"]]
    is_scheduler = options.get("method") == "scheduler"
    properties: dict[str, Any] = {}
    if "enabled" in options:
        properties |= _enabled(options) if is_scheduler else {"Enabled": options["enabled"]}
    if is_scheduler and "timezone" in options:
        properties["ScheduleExpressionTimezone"] = options["timezone"]
    if "input" in options:
        properties["Input"] = _text(options["input"])
    if "name" in options and len(rates) == 1:  # several schedules cannot have one name
        properties["Name"] = options["name"]
    if "description" in options:
        properties["Description"] = options["description"]
    expression = "ScheduleExpression" if is_scheduler else "Schedule"
    kind = "ScheduleV2" if is_scheduler else "Schedule"
    return [{"Type": kind, "Properties": {expression: rate, **properties}} for rate in rates]


def _enabled(options: Mapping[str, Any]) -> dict[str, str]:
    return {"State": "ENABLED" if options["enabled"] else "DISABLED"}


def _text(given: Any) -> str:
    return given if isinstance(given, str) else json.dumps(given)


def _bridge(function: str, given: Any, generated: Generated) -> Sequence[dict[str, Any]]:
    options = given if isinstance(given, dict) else {}
    names = {"description": "Description"}
    properties: dict[str, Any] = {ours: options[theirs] for theirs, ours in names.items() if theirs in options}
    if "input" in options:
        properties["Input"] = _text(options["input"])
    if "schedule" in options:
        if "enabled" in options:
            properties["Enabled"] = options["enabled"]
        if unmapped := [name for name in ("inputPath", "inputTransformer") if name in options]:
            generated.notes.append(f"{function}: {unmapped[0]} of a schedule is left out: the function gets the event")
        return [{"Type": "Schedule", "Properties": {"Schedule": options["schedule"], **properties}}]
    pattern = options.get("pattern", options.get("event"))
    if not isinstance(pattern, dict):
        raise ProjectError(f"serverless.yml: functions.{function}.events: an event of EventBridge needs a pattern")
    properties.pop("Description", None)  # SAM's rules have none
    properties["Pattern"] = pattern
    if "enabled" in options:
        properties |= _enabled(options)
    if "name" in options:
        properties["RuleName"] = options["name"]
    if "inputPath" in options:
        properties["InputPath"] = options["inputPath"]
    if "inputTransformer" in options:
        properties["InputTransformer"] = _as_transformer(options["inputTransformer"])
    if "eventBus" in options:
        properties["EventBusName"] = _bus(options["eventBus"], generated)
    if "retryPolicy" in options:
        properties["RetryPolicy"] = _retries(options["retryPolicy"])
    if "deadLetterQueueArn" in options:
        properties["DeadLetterConfig"] = {"Arn": options["deadLetterQueueArn"]}
    return [{"Type": "EventBridgeRule", "Properties": properties}]


def _as_transformer(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"InputPathsMap": given.get("inputPathsMap") or {}, "InputTemplate": given.get("inputTemplate")}


def _retries(given: Mapping[str, Any]) -> dict[str, Any]:
    names = {"maximumEventAge": "MaximumEventAgeInSeconds", "maximumRetryAttempts": "MaximumRetryAttempts"}
    return {ours: given[theirs] for theirs, ours in names.items() if theirs in given}


def _bus(given: Any, generated: Generated) -> Any:
    """Return the event bus of a rule. One that is only named is made, as Serverless makes it."""
    if not isinstance(given, str) or given.startswith("arn:") or given == "default":
        return given
    found = _named(generated.resources, "AWS::Events::EventBus", "Name", given)
    logical_id = found or f"{capitalised(given)}EventBus"
    generated.resources.setdefault(logical_id, {"Type": "AWS::Events::EventBus", "Properties": {"Name": given}})
    return {"Ref": logical_id}


def _log(function: str, given: Any, generated: Generated) -> Sequence[dict[str, Any]]:
    options = _options(function, "cloudwatchLog", given, "logGroup")
    properties = {"LogGroupName": options["logGroup"], "FilterPattern": options.get("filter", "")}
    return [{"Type": "CloudWatchLogs", "Properties": properties}]


_HTTP = {"http": rest_event, "httpApi": http_event}
_MAKERS: Mapping[str, Maker] = {
    "s3": _s3, "sqs": _sqs, "sns": _sns, "schedule": _schedule, "stream": _stream, "eventBridge": _bridge,
    "cloudwatchEvent": _bridge, "cloudwatchLog": _log,
}  # fmt: skip
