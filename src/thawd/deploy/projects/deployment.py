"""Makes a project's stacks in a running server, through its APIs of S3, SSM and CloudFormation."""

from __future__ import annotations

import asyncio
import io
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thawd.deploy.projects import artifacts
from thawd.deploy.projects.project_images import ProjectImages
from thawd.deploy.projects.stacks import AssetFile, Project, ProjectError, ProjectStack
from thawd.deploy.projects.zip_files import Source, archive
from thawd.deploy.templates.preparation import Prepared, prepare, values_of_parameters
from thawd.deploy.templates.refusals import TemplateError
from thawd.deploy.templates.values import StackContext
from thawd.resources import ACCOUNT_ID, REGION

# A template that is longer is read from the bucket. Source: CloudFormation quotas, "Template body size in a request".
_LONGEST_BODY = 51_200
# How long to wait before the next look at a stack: a part of the time that its operation has already taken.
_FIRST_LOOK_S, _LAST_LOOK_S, _LOOK_SHARE = 0.05, 0.3, 0.05
_CAPABILITIES = ["CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND"]
# A stack in one of these states can only be deleted.
_DEAD = ("ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "CREATE_FAILED", "DELETE_FAILED", "REVIEW_IN_PROGRESS")
_GOOD = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS", "IMPORT_COMPLETE")
REST_API, _STAGE = "AWS::ApiGateway::RestApi", "AWS::ApiGateway::Stage"
_NO_UPDATE = "No updates are to be performed"


@dataclass(slots=True)
class Deployed:
    """A stack that exists.

    Attributes:
        name: the stack's name.
        has_changed: whether this deployment made or changed it.
        outputs: values of its outputs.
        physical_ids: physical ids of its resources by type and logical id, also of those in nested stacks.
        sources: files and folders whose change requires another deployment.
        stages: names of the stages of its REST APIs, by the API's id.
    """

    name: str
    has_changed: bool
    outputs: dict[str, str] = field(default_factory=dict)
    physical_ids: dict[tuple[str, str], str] = field(default_factory=dict)
    sources: set[Path] = field(default_factory=set)
    stages: dict[str, list[str]] = field(default_factory=dict)


class Deployer:
    """Deploys stacks to one server.

    Args:
        url: URL of the server.
        keys: its access keys; the first one signs. Empty: the server accepts any.
        tools: what code is built with.
        images: builds images, and forgets those that are not used.
        note: prints a line for the operator.
    """

    def __init__(
        self,
        url: str,
        keys: Mapping[str, str],
        *,
        tools: artifacts.BuildTools,
        images: ProjectImages,
        note: Callable[[str], None],
    ) -> None:
        self._url, self._keys, self._images, self._note = url, keys, images, note
        self._tools = tools
        self._clients: dict[str, Any] = {}
        self._session: Any = None
        self._making = threading.Lock()
        self._noted: set[str] = set()
        # Template, parameters and tags with which this object has made a stack.
        self._made: dict[str, tuple[str, dict[str, str], dict[str, str]]] = {}

    async def deploy(self, project: Project) -> list[Deployed]:
        """Make or update the stacks of a project, and wait until they are complete.

        Raises:
            ProjectError: a stack failed; the message names the resource and the reason.
            EnvironmentBuildError: requirements cannot be installed.
            ImageError: an image cannot be built.
        """
        for line in project.notes:
            self._once(line)
        await self._bootstrap(project.bootstrap)
        return [await self._deploy(stack) for stack in project.stacks]

    async def _deploy(self, stack: ProjectStack) -> Deployed:
        packaged = await asyncio.to_thread(artifacts.package, stack, self._tools)
        for line in packaged.notes:
            self._once(line)
        for asset in stack.assets:
            await self._publish(asset)
        if packaged.objects:
            await self._store(artifacts.BUCKET, packaged.objects)
        parameters = await asyncio.to_thread(_parameters, stack, packaged)
        body = json.dumps(packaged.document)
        has_changed = await self._make(stack, body, parameters)
        deployed = Deployed(stack.name, has_changed, sources=packaged.sources | {each.path for each in stack.assets})
        described = await self._described(stack.name)
        assert described is not None
        deployed.outputs = {each["OutputKey"]: each["OutputValue"] for each in described.get("Outputs", ())}
        await self._list_resources(stack.name, deployed)
        await self._list_stages(deployed)
        await self._forget_others(stack.name, packaged.objects)
        await asyncio.to_thread(self._images.forget_others, stack.name, packaged.images)
        return deployed

    async def _make(self, stack: ProjectStack, body: str, parameters: Mapping[str, str]) -> bool:
        """Create or update a stack. Returns whether there was anything to do."""
        wanted = (body, dict(parameters), dict(stack.tags))
        if self._made.get(stack.name) == wanted:
            return False
        self._made.pop(stack.name, None)
        before = await self._settled(stack.name)
        if before is not None and before["StackStatus"] in _DEAD:
            await self._call("cloudformation", "delete_stack", StackName=stack.name)
            before = await self._settled(stack.name)
        seen = await self._event_ids(stack.name) if before is not None else set()
        request: dict[str, Any] = {
            "StackName": stack.name,
            "Capabilities": _CAPABILITIES,
            "Parameters": [{"ParameterKey": name, "ParameterValue": text} for name, text in parameters.items()],
            "Tags": [{"Key": name, "Value": text} for name, text in stack.tags.items()],
        }
        request |= await self._template(stack.name, body)
        try:
            await self._call("cloudformation", "create_stack" if before is None else "update_stack", **request)
        except ProjectError as error:
            if _NO_UPDATE in error.message:
                self._made[stack.name] = wanted
                return False
            raise ProjectError(f"stack {stack.name}: {error.message}") from error
        after = await self._settled(stack.name)
        if after is None or after["StackStatus"] not in _GOOD:
            raise ProjectError(await self._failure(stack.name, after, seen))
        self._made[stack.name] = wanted
        return True

    async def _template(self, name: str, body: str) -> dict[str, str]:
        if len(body) <= _LONGEST_BODY:
            return {"TemplateBody": body}
        key = f"{name}/template.json"
        await self._store(artifacts.BUCKET, {key: body.encode()}, replace=True)
        return {"TemplateURL": f"https://s3.{REGION}.amazonaws.com/{artifacts.BUCKET}/{key}"}

    async def _settled(self, name: str) -> dict[str, Any] | None:
        """Wait until no operation on a stack runs, and return the stack; None: it does not exist."""
        begun_s = time.monotonic()
        while True:
            described = await self._described(name)
            status = "" if described is None else str(described["StackStatus"])
            is_gone = described is None or status == "DELETE_COMPLETE"
            if is_gone or not status.endswith("_IN_PROGRESS") or status in ("REVIEW_IN_PROGRESS",):
                return None if is_gone else described
            taken_s = time.monotonic() - begun_s
            await asyncio.sleep(min(_FIRST_LOOK_S + taken_s * _LOOK_SHARE, _LAST_LOOK_S))

    async def _described(self, name: str) -> dict[str, Any] | None:
        try:
            answer = await self._call("cloudformation", "describe_stacks", StackName=name)
        except ProjectError as error:
            if "does not exist" in error.message:
                return None
            raise
        stacks: list[dict[str, Any]] = answer["Stacks"]
        return stacks[0] if stacks else None

    async def _event_ids(self, name: str) -> set[str]:
        return {event["EventId"] for event in await self._events(name)}

    async def _events(self, name: str) -> list[dict[str, Any]]:
        answer = await self._call("cloudformation", "describe_stack_events", StackName=name)
        events: list[dict[str, Any]] = answer["StackEvents"]
        return events

    async def _failure(self, name: str, after: Mapping[str, Any] | None, seen: set[str]) -> str:
        """Return why a stack failed: the reason in the first event of a failure, which causes the later ones."""
        events = [each for each in await self._events(name) if each["EventId"] not in seen]
        failed = [each for each in events if "FAILED" in each["ResourceStatus"] and each.get("ResourceStatusReason")]
        failed = [each for each in failed if "cancelled" not in each["ResourceStatusReason"]] or failed
        status = "gone" if after is None else after["StackStatus"]
        if not failed:
            reason = "" if after is None else after.get("StackStatusReason", "")
            return f"stack {name} is {status}: {reason or 'no event says why'}"
        first = min(failed, key=lambda each: each["Timestamp"])
        return f"stack {name} is {status}: {first['LogicalResourceId']}: {first['ResourceStatusReason']}"

    async def _list_resources(self, name: str, deployed: Deployed) -> None:
        answer = await self._call("cloudformation", "describe_stack_resources", StackName=name)
        for each in answer["StackResources"]:
            if each["ResourceType"] == "AWS::CloudFormation::Stack" and each.get("PhysicalResourceId"):
                await self._list_resources(each["PhysicalResourceId"], deployed)
            key = (each["ResourceType"], each["LogicalResourceId"])
            deployed.physical_ids.setdefault(key, each.get("PhysicalResourceId", ""))

    async def _list_stages(self, deployed: Deployed) -> None:
        """Find the stages of REST APIs. A deployment makes one, too, which is no resource of the stack."""
        apis = [each for (kind, _), each in deployed.physical_ids.items() if kind == REST_API]
        named = [each for (kind, _), each in deployed.physical_ids.items() if kind == _STAGE]
        if len(apis) == len(named) == 1:
            deployed.stages[apis[0]] = named
            return
        for api in apis:
            found = await self._call("apigateway", "get_stages", restApiId=api)
            names = sorted(each["stageName"] for each in found["item"])
            # SAM's deployments make another stage, "Stage", beside that which the template declares.
            deployed.stages[api] = [each for each in names if each in named] or names

    # Objects and parameters that stacks need

    async def _publish(self, asset: AssetFile) -> None:
        if await self._has(asset.bucket, asset.key):
            return
        if not asset.path.exists():
            raise ProjectError(f"there is no {asset.path}, which the cloud assembly names: run `cdk synth` again")
        content = await asyncio.to_thread(self._content, asset)
        await self._store(asset.bucket, {asset.key: content})

    def _content(self, asset: AssetFile) -> bytes:
        content = archive([Source(asset.path, "")], compresses=False) if asset.is_zipped else asset.path.read_bytes()
        if asset.key.endswith(".zip"):
            self._tools.take_zip(content)
        return content

    async def _store(self, bucket: str, objects: Mapping[str, bytes], *, replace: bool = False) -> None:
        missing = [key for key in objects if replace or not await self._has(bucket, key)]
        if not missing:
            return
        if not await self._has_bucket(bucket):
            await self._call("s3", "create_bucket", Bucket=bucket)
        for key in missing:
            await self._call("s3", "put_object", Bucket=bucket, Key=key, Body=io.BytesIO(objects[key]))

    async def _has_bucket(self, bucket: str) -> bool:
        answer = await self._call("s3", "list_buckets")
        return any(each["Name"] == bucket for each in answer["Buckets"])

    async def _has(self, bucket: str, key: str) -> bool:
        if not await self._has_bucket(bucket):
            return False
        answer = await self._call("s3", "list_objects_v2", Bucket=bucket, Prefix=key)
        return any(each["Key"] == key for each in answer.get("Contents", ()))

    async def _forget_others(self, name: str, objects: Mapping[str, bytes]) -> None:
        """Remove objects that earlier deployments of a stack stored and this one does not use."""
        if not await self._has_bucket(artifacts.BUCKET):
            return
        answer = await self._call("s3", "list_objects_v2", Bucket=artifacts.BUCKET, Prefix=f"{name}/")
        for each in answer.get("Contents", ()):
            if each["Key"] not in objects and not each["Key"].endswith("/template.json"):
                await self._call("s3", "delete_object", Bucket=artifacts.BUCKET, Key=each["Key"])

    async def _bootstrap(self, parameters: Mapping[str, str]) -> None:
        """Put parameters into the parameter store, unless `cdk bootstrap` has put them there."""
        for name, value in parameters.items():
            found = await self._call("ssm", "get_parameters", Names=[name])
            if found["Parameters"]:
                continue
            await self._call("ssm", "put_parameter", Name=name, Value=value, Type="String", Overwrite=True)

    # Calls

    async def _call(self, service: str, operation: str, **request: Any) -> Any:
        """Call an operation of the server, in a thread.

        Raises:
            ProjectError: the server refused it, or did not answer.
        """
        return await asyncio.to_thread(self._answer, service, operation, request)

    def _answer(self, service: str, operation: str, request: dict[str, Any]) -> Any:
        import botocore.exceptions

        try:
            return getattr(self._client(service), operation)(**request)
        except botocore.exceptions.ClientError as error:
            raise ProjectError(str(error.response["Error"].get("Message") or error)) from error
        except botocore.exceptions.BotoCoreError as error:
            raise ProjectError(f"{service}: {error}") from error

    def make_clients(self) -> None:
        """Make the clients that each deployment needs, which takes long. The server need not answer yet."""
        for service in ("cloudformation", "s3"):
            self._client(service)

    def _client(self, service: str) -> Any:
        with self._making:
            if service not in self._clients:
                import boto3
                from botocore.config import Config

                if self._session is None:  # one session for all clients, because each one reads the list of endpoints
                    access_key, secret = next(iter(self._keys.items()), ("test", "test"))
                    self._session = boto3.Session(access_key, secret, region_name=REGION)
                config = Config(
                    retries={"total_max_attempts": 1},
                    read_timeout=900,
                    s3={"addressing_style": "path", "payload_signing_enabled": False},  # it does not leave the machine
                    request_checksum_calculation="when_required",
                    ignore_configured_endpoint_urls=True,
                    proxies={},
                )
                self._clients[service] = self._session.client(service, endpoint_url=self._url, config=config)
            return self._clients[service]

    def _once(self, line: str) -> None:
        if line not in self._noted:
            self._noted.add(line)
            self._note(line)


def prepared(stack: ProjectStack, packaged: artifacts.Packaged) -> Prepared:
    """Return a stack's template, prepared without a server. Exports and values of services are placeholders.

    Raises:
        ProjectError: the template is wrong, or a parameter is.
    """
    try:
        made = prepare(packaged.document, stack.parameters, _context(stack, packaged))
        made.order()
    except TemplateError as error:
        raise _refusal(stack, error) from error
    return made


def _parameters(stack: ProjectStack, packaged: artifacts.Packaged) -> dict[str, str]:
    """Return the values of all parameters of a stack's template, including defaults.

    The template is checked as a whole when the stack is made. To prepare it here, too, would take as long again.

    Raises:
        ProjectError: a parameter is wrong.
    """
    try:
        values = values_of_parameters(packaged.document, stack.parameters, _context(stack, packaged))
    except TemplateError as error:
        raise _refusal(stack, error) from error
    return {name: each.text for name, each in values.items()}


def _context(stack: ProjectStack, packaged: artifacts.Packaged) -> StackContext:
    return StackContext(
        account_id=ACCOUNT_ID,
        region=REGION,
        stack_name=stack.name,
        stack_id=f"arn:aws:cloudformation:{REGION}:{ACCOUNT_ID}:stack/{stack.name}/0",
        exports=lambda name: name,
        resolve=lambda reference: reference.name,
        read=lambda place: packaged.objects[place.removeprefix(f"s3://{artifacts.BUCKET}/")].decode(),
    )


def _refusal(stack: ProjectStack, error: TemplateError) -> ProjectError:
    way_out = "; give them with --parameters Key=Value" if "must have values" in error.message else ""
    return ProjectError(f"stack {stack.name}: {error.message}{way_out}")
