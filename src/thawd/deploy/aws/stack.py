"""The stack while it is made: its resources so far, the settings that AWS cannot carry out, and references."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from thawd.config import Settings
from thawd.deploy.aws import naming
from thawd.deploy.aws.used_stores import Uses
from thawd.errors import ThawdError
from thawd.resources import ACCOUNT_ID, ACTIVE, AwsDeployment, Function

_QUEUE_URL = re.compile(r"https?://(?:sqs\.([a-z0-9-]+)\.)?[^/]*/(\d{12})/([A-Za-z0-9_-]{1,80}(?:\.fifo)?)")
_ARN = re.compile(r"arn:aws[a-z-]*:(sqs|sns|events|kinesis|dynamodb):([a-z0-9-]*):(\d{12}):(\S+)")


class DeploymentError(ThawdError):
    """The configuration cannot be deployed, or AWS refused the deployment. The message says why and what to do."""

    type = "InvalidParameterValueException"
    status = 400
    retryable = False


class Missing(msgspec.Struct, frozen=True, kw_only=True):
    """A setting of thawd.toml that AWS cannot carry out.

    Attributes:
        where: key path in ``thawd.toml``.
        what: text that says what will be missing or different on AWS.
    """

    where: str
    what: str


class LayerCode(msgspec.Struct, frozen=True, kw_only=True):
    """The archive of a layer with packages.

    Attributes:
        name: name of the layer among those of the stack.
        key: key of the object in the bucket of archives.
    """

    name: str
    key: str


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """The archives of a function's code, or its container image.

    Attributes:
        key: key of the object in the bucket of archives; empty if the code is an image.
        runtime: Lambda's runtime identifier; empty if the code is an image.
        image: digest of the container image; None: the code is in archives.
        uses: the buckets, tables and modules that the code uses; None: the code is not Python.
        handler: the handler that Lambda calls, if it is not the function's own; otherwise None.
        layers: layers with the function's packages, in order.
        part: name of the archive that the function fetches in its init phase, in the stack's folder of the bucket of
            archives; None: it fetches no archive.
        ephemeral_storage_mb: size of ``/tmp``, MB; None: the declared size.
    """

    key: str = ""
    runtime: str = ""
    image: str | None = None
    uses: Uses | None = None
    handler: str | None = None
    layers: tuple[LayerCode, ...] = ()
    part: str | None = None
    ephemeral_storage_mb: int | None = None


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration to deploy, with the archives of its code.

    Attributes:
        settings: the configuration.
        stack: name of the stack.
        code: code of each function, by function name.
        layer_key: key of the archive with the package ``thawd``; None: no function needs it.
        deployed: the template that is deployed at present; None: there is no stack.
    """

    settings: Settings
    stack: str
    code: Mapping[str, Code]
    layer_key: str | None = None
    deployed: Mapping[str, Any] | None = None


def ref(logical_id: str) -> dict[str, Any]:
    """Return a reference to a resource."""
    return {"Ref": logical_id}


def attribute(logical_id: str, name: str) -> dict[str, Any]:
    """Return a reference to an attribute of a resource."""
    return {"Fn::GetAtt": [logical_id, name]}


def sub(text: str) -> Any:
    """Return a text with pseudo parameters such as ``${AWS::Region}``; a plain text if it has none."""
    return {"Fn::Sub": text} if "${" in text else text


def literal(text: str) -> str:
    """Return a text for `sub` that stands for itself."""
    return text.replace("${", "${!")


def pattern_of(text: str) -> str:
    """Return a text for `sub` that stands for itself in the resource of a policy, where ``*`` and ``?`` are patterns.

    Source: IAM user guide, "IAM policy elements: Variables and tags".
    """
    return re.sub(r"[*?$]", lambda found: f"${{!{found[0]}}}", text)


@dataclass(slots=True)
class Stack:
    """The stack while it is made.

    Attributes:
        order: the configuration to deploy.
        resources: resources by logical id.
        outputs: outputs by logical id.
        missing: settings of thawd.toml that AWS cannot carry out, in the order of the file.
        notified_functions: logical ids of the permissions that a bucket's notifications need, by bucket name.
    """

    order: Order
    resources: dict[str, dict[str, Any]] = field(default_factory=dict)
    outputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)
    notified_functions: dict[str, list[str]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the stack."""
        return self.order.stack

    @property
    def settings(self) -> Settings:
        """The configuration."""
        return self.order.settings

    @property
    def aws(self) -> AwsDeployment:
        """How the configuration is deployed."""
        return self.order.settings.deployment

    def traces(self, function: Function) -> bool:
        """Return whether X-Ray traces a function: all are traced, or this one is active."""
        return self.aws.tracing or function.tracing == ACTIVE

    def add(self, logical_id: str, kind: str, properties: Mapping[str, Any], **more: Any) -> str:
        """Add a resource and return its logical id. `more` are further attributes such as ``DependsOn``.

        Properties that are None are left out.
        """
        given = {name: value for name, value in properties.items() if value is not None}
        added = {"Type": kind, **({"Properties": given} if given else {}), **more}
        if self.resources.setdefault(logical_id, added) != added:
            raise AssertionError(f"two resources with the logical id {logical_id}")
        return logical_id

    def add_missing(self, where: str, what: str) -> None:
        """Record a setting that AWS cannot carry out."""
        self.missing.append(Missing(where=where, what=what))

    def output(self, logical_id: str, value: Any, description: str) -> None:
        """Add an output of the stack."""
        self.outputs[logical_id] = {"Description": description, "Value": value}

    def function_id(self, function: str) -> str:
        """Return the logical id of a function."""
        return naming.logical_id(function, "Function")

    def alias(self, function: str) -> dict[str, Any]:
        """Return a reference to a function's alias. Its value is the alias's ARN."""
        return ref(naming.logical_id(function, "Alias"))

    def function_arn(self, function: str) -> str:
        """Return the ARN of a function without qualifier, as a text for `sub`. It does not refer to the resource."""
        name = naming.function_name(self.name, function)
        return f"arn:${{AWS::Partition}}:lambda:${{AWS::Region}}:${{AWS::AccountId}}:function:{name}"

    def permit(self, function: str, *, principal: str, source: str, source_arn: Any) -> str:
        """Allow a service to invoke a function's alias; returns the permission's logical id.

        Args:
            function: name of the function.
            principal: the service.
            source: makes the logical id unique among the function's permissions.
            source_arn: ARN of the service's resource. It must not refer to a resource that needs the permission.
        """
        properties = {
            "Action": "lambda:InvokeFunction",
            "FunctionName": self.alias(function),
            "Principal": principal,
            "SourceArn": source_arn,
            "SourceAccount": ref("AWS::AccountId") if principal == "s3.amazonaws.com" else None,
        }
        return self.add(
            naming.logical_id(function, "") + naming.logical_id(source, "Permission"),
            "AWS::Lambda::Permission",
            properties,
        )

    def arn_of(self, address: str) -> Any:
        """Return the ARN of a queue, topic, event bus or stream that thawd.toml names by ARN or by a queue's URL.

        If the address has the account of thawd's emulator, nothing exists in AWS for it. Then the stack gets a new
        resource, and the result refers to it. Other ARNs are returned unchanged.

        Raises:
            DeploymentError: the address belongs to the emulator, and stacks have no resource of this kind.
        """
        found = _QUEUE_URL.fullmatch(address)
        if found is not None:
            region = found[1] or "${AWS::Region}"
            service, account, rest = "sqs", found[2], found[3]
            address = f"arn:${{AWS::Partition}}:sqs:{region}:{account}:{rest}"
        elif (arn := _ARN.fullmatch(address)) is not None:
            service, account, rest = arn[1], arn[3], arn[4]
        else:
            return address
        return sub(address) if account != ACCOUNT_ID else self._emulated_arn(service, rest)

    def _emulated_arn(self, service: str, rest: str) -> Any:
        if service == "sqs":
            self.queue(rest)
            return attribute(naming.logical_id(rest, "Queue"), "Arn")
        if service == "sns":
            name = naming.shortened(f"{self.name}-{rest}", longest=256)
            return ref(self.add(naming.logical_id(rest, "Topic"), "AWS::SNS::Topic", {"TopicName": name}))
        if service == "events":
            bus = rest.removeprefix("event-bus/")
            if bus == "default":
                return sub("arn:${AWS::Partition}:events:${AWS::Region}:${AWS::AccountId}:event-bus/default")
            name = naming.shortened(f"{self.name}-{bus}", longest=256)
            return attribute(self.add(naming.logical_id(bus, "Bus"), "AWS::Events::EventBus", {"Name": name}), "Arn")
        raise DeploymentError(f"{rest} of {service} is an emulated resource; name one of your account by its ARN")

    def queue(self, name: str) -> str:
        """Add a queue that replaces an emulated one, unless the stack has it. Return its name in the account."""
        timeouts = [
            self.settings.functions[function].timeout_s
            for function, sources in self.settings.sources.items()
            for source in sources
            if source.sqs.rpartition(":")[2].rpartition("/")[2] == name
        ]
        own = naming.queue_name(self.name, name)
        # Source: Lambda developer guide, "Using Lambda with Amazon SQS": at least six times the function's timeout.
        properties = {
            "QueueName": own,
            "FifoQueue": True if name.endswith(".fifo") else None,
            "SqsManagedSseEnabled": True,
            "MessageRetentionPeriod": 1_209_600,
            "VisibilityTimeout": 6 * max(timeouts) if timeouts else None,
        }
        self.add(naming.logical_id(name, "Queue"), "AWS::SQS::Queue", properties)
        return own


def statement(actions: Iterable[str], resources: Any) -> dict[str, Any]:
    """Return a statement of a policy that allows `actions`."""
    listed = resources if isinstance(resources, list) else [resources]
    return {"Effect": "Allow", "Action": sorted(actions), "Resource": listed}


def trust(service: str) -> dict[str, Any]:
    """Return the policy document that lets a service assume a role."""
    allowed = {"Effect": "Allow", "Action": ["sts:AssumeRole"], "Principal": {"Service": [service]}}
    return {"Version": "2012-10-17", "Statement": [allowed]}
