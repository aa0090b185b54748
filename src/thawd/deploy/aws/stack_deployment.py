"""Carries out deployments: reads and changes stacks, uploads archives. The only module here that imports boto3.

AWS keeps the state, so a process that is killed loses nothing: CloudFormation finishes or rolls back the change that it
has begun, and the next deployment continues from the result. If two deployments were planned at the same time,
CloudFormation refuses the change set of the second.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from thawd.deploy.aws import naming
from thawd.deploy.aws.assets import Asset
from thawd.deploy.aws.stack import DeploymentError

# Source: CloudFormation quotas, "Template body size in a request".
_LONGEST_BODY_BYTES = 51_200
_FIRST_LOOK_S, _LAST_LOOK_S = 0.2, 3.0
_CHANGE_SET_TIMEOUT_S = 600.0
_LONGEST_INVOCATION_S = 910
_CAPABILITIES = ["CAPABILITY_IAM"]
_MARK = "deployed by thawd"
_NO_CHANGES = ("didn't contain changes", "No updates are to be performed")
_PLANNED = "REVIEW_IN_PROGRESS"
"""State of a stack that has nothing but a change set."""
_EMPTY = (_PLANNED, "ROLLBACK_COMPLETE", "DELETE_COMPLETE")
"""States of stacks without resources."""
_LAST_STATES = ("CREATE_COMPLETE", "UPDATE_COMPLETE")


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """Region, credentials and endpoint of AWS. A field that is None gets its value from AWS's own settings.

    Attributes:
        region: region.
        profile: profile of the credentials.
        endpoint_url: URL of all services, for example of an emulator.
    """

    region: str | None = None
    profile: str | None = None
    endpoint_url: str | None = None


class DeployedStack(msgspec.Struct, frozen=True, kw_only=True):
    """A stack that exists.

    Attributes:
        stack_id: its ARN.
        status: its status, such as ``UPDATE_COMPLETE``.
        reason: CloudFormation's reason of the status; empty if there is none.
        template: its template; None: it has no resources.
        outputs: values of its outputs.
    """

    stack_id: str
    status: str
    reason: str
    template: dict[str, Any] | None
    outputs: dict[str, str] = {}

    @property
    def is_changing(self) -> bool:
        """Whether CloudFormation is changing the stack."""
        return self.status.endswith("_IN_PROGRESS") and self.status not in _EMPTY


class StackEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a stack: the new status of a resource.

    Attributes:
        resource: the resource's logical id.
        type: its type.
        status: its new status.
        reason: the reason; empty if there is none.
    """

    resource: str
    type: str
    status: str
    reason: str


Report = Callable[[StackEvent], None]


class AwsAccount:
    """An account and region of AWS.

    All methods raise `DeploymentError` if AWS cannot be reached or refuses a request; the message has AWS's reason.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._clients: dict[str, Any] = {}
        with explained():
            import boto3

            self._session = boto3.Session(profile_name=access.profile, region_name=access.region)
        if self._session.region_name is None:
            raise DeploymentError("no AWS region is set; give --region, or set region in [deploy.aws]")
        self.region: str = self._session.region_name

    def client(self, service: str) -> Any:
        """Return the client of a service."""
        if service not in self._clients:
            from botocore.config import Config

            config = Config(retries={"mode": "standard", "total_max_attempts": 5})
            if service == "lambda":  # an invocation takes up to 15 minutes, and must not be repeated
                config = config.merge(Config(read_timeout=_LONGEST_INVOCATION_S, retries={"total_max_attempts": 1}))
            if self._access.endpoint_url is not None:
                config = config.merge(Config(s3={"addressing_style": "path"}))
            with explained():
                self._clients[service] = self._session.client(
                    service, endpoint_url=self._access.endpoint_url, config=config
                )
        return self._clients[service]

    def signing_headers(self, service: str, url: str, body: bytes, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers that sign a POST request (Signature Version 4).

        Args:
            service: the service's name in signatures, such as ``lambda``.
            url: URL of the request.
            body: body of the request.
            headers: the other headers of the request.
        """
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest

        with explained():
            credentials = self._session.get_credentials()
        if credentials is None:
            raise DeploymentError("there are no AWS credentials; see `aws configure`")
        request = AWSRequest("POST", url, headers=dict(headers), data=body)
        SigV4Auth(credentials.get_frozen_credentials(), service, self.region).add_auth(request)
        return {name: value for name, value in request.headers.items() if name not in headers}

    def close(self) -> None:
        """Close all connections."""
        while self._clients:
            self._clients.popitem()[1].close()

    def account_id(self) -> str:
        """Return the account's id."""
        with explained():
            return str(self.client("sts").get_caller_identity()["Account"])

    def read_stack(self, name: str) -> DeployedStack | None:
        """Return a stack with its template; None: there is none.

        Raises:
            DeploymentError: another tool made the stack.
        """
        from botocore.exceptions import ClientError

        client = self.client("cloudformation")
        with explained():
            try:
                [found] = client.describe_stacks(StackName=name)["Stacks"]
            except ClientError as error:
                if "does not exist" in str(error):
                    return None
                raise
            template = None
            if found["StackStatus"] != _PLANNED:
                template = client.get_template(StackName=name, TemplateStage="Original")["TemplateBody"]
        if isinstance(template, str):
            template = json.loads(template) if template.lstrip().startswith("{") else {}
        if template is not None and not str(template.get("Description", "")).endswith(_MARK):
            raise DeploymentError(
                f"the stack {name} was not made by thawd; name another one with --stack or stack in [deploy.aws]"
            )
        return DeployedStack(
            stack_id=found["StackId"],
            status=found["StackStatus"],
            reason=found.get("StackStatusReason", ""),
            template=None if found["StackStatus"] in _EMPTY else json.loads(json.dumps(template)),
            outputs={output["OutputKey"]: output["OutputValue"] for output in found.get("Outputs", [])},
        )

    def upload(self, archives: tuple[Asset, ...], *, report: Callable[[str], None]) -> None:
        """Upload the archives that the bucket does not have yet. `report` is called with the key of each of them."""
        bucket, owner = self._assets_bucket()
        for asset in archives:
            with explained():
                if not self._has_object(bucket, asset.key, owner):
                    report(asset.key)
                    with asset.file.open("rb") as body:
                        self.client("s3").upload_fileobj(
                            body, bucket, asset.key, ExtraArgs={"ExpectedBucketOwner": owner}
                        )

    def deploy(self, name: str, text: str, *, planned: Mapping[str, Any] | None, report: Report) -> bool:
        """Create or update a stack, and wait until it is complete.

        Args:
            name: name of the stack.
            text: the template.
            planned: the deployed template when the plan was made; None: there was no stack.
            report: called with each event of the stack.

        Returns:
            Whether CloudFormation changed something.

        Raises:
            DeploymentError: the stack has changed since it was planned, or the change failed and was rolled back.
        """
        stack = self.read_stack(name)
        _require_unchanging(name, stack)
        if (None if stack is None else stack.template) != planned:
            raise DeploymentError(f"the stack {name} was changed since the plan was made; plan again")
        if stack is not None and stack.status == "ROLLBACK_COMPLETE":
            self._delete(stack, report)
            stack = None
        is_new = stack is None or stack.template is None
        change_set = self._create_change_set(name, text, is_new=is_new, is_first=stack is None)
        if change_set is None:
            return False
        stack_id = change_set["StackId"]
        seen = {event["EventId"] for event in self._events(stack_id)}
        self._execute(name, change_set["Id"])
        status, failures = self._wait(stack_id, seen, report)
        if status not in _LAST_STATES:
            self._refuse_failed(name, stack_id, status, failures, report=report)
        return True

    def _execute(self, name: str, change_set_id: str) -> None:
        from botocore.exceptions import ClientError

        with explained():
            try:
                self.client("cloudformation").execute_change_set(ChangeSetName=change_set_id)
            except ClientError as error:
                # Source: CloudFormation API reference, ExecuteChangeSet: after one is executed, others are gone.
                if error.response["Error"]["Code"] not in ("ChangeSetNotFound", "InvalidChangeSetStatus"):
                    raise
                raise DeploymentError(
                    f"another deployment of the stack {name} began at the same time; plan again when it has ended"
                ) from None

    def destroy(self, name: str, *, deletes_data: bool, report: Report) -> bool:
        """Delete a stack, and the archives of its code.

        Args:
            name: name of the stack.
            deletes_data: whether buckets and tables may be deleted with their contents.
            report: gets each event of the stack.

        Returns:
            Whether there was a stack.

        Raises:
            DeploymentError: the stack has buckets or tables and `deletes_data` is false, or the deletion failed.
        """
        stack = self.read_stack(name)
        _require_unchanging(name, stack)
        if stack is not None:
            holding = [
                (entry["type"], entry["name"])
                for entry in self.resources(stack.stack_id)
                if entry["type"] in ("AWS::S3::Bucket", "AWS::DynamoDB::Table")
                and entry["name"]
                and entry["status"] != "DELETE_COMPLETE"
            ]
            if holding and not deletes_data:
                named = ", ".join(sorted(physical for _, physical in holding))
                raise DeploymentError(f"{named} would be deleted with all data; add --delete-data if that is wanted")
            for kind, physical in holding:
                if kind == "AWS::S3::Bucket":
                    self._empty_bucket(physical)
            self._delete(stack, report)
        self._remove_archives(name)
        return stack is not None

    def resources(self, stack_id: str) -> list[dict[str, str]]:
        """Return the stack's resources: logical id, type, status, and physical id."""
        with explained():
            pages = self.client("cloudformation").get_paginator("list_stack_resources").paginate(StackName=stack_id)
            return [
                {
                    "resource": entry["LogicalResourceId"],
                    "type": entry["ResourceType"],
                    "status": entry["ResourceStatus"],
                    "name": entry.get("PhysicalResourceId", ""),
                }
                for page in pages
                for entry in page["StackResourceSummaries"]
            ]

    def _delete(self, stack: DeployedStack, report: Report) -> None:
        seen = {event["EventId"] for event in self._events(stack.stack_id)}
        with explained():
            self.client("cloudformation").delete_stack(StackName=stack.stack_id)
        status, failures = self._wait(stack.stack_id, seen, report)
        if status != "DELETE_COMPLETE":
            raise DeploymentError(f"the stack was not deleted, it is {status}: {_first(failures)}")

    def _create_change_set(self, name: str, text: str, *, is_new: bool, is_first: bool) -> dict[str, Any] | None:
        """Create a change set and wait until it can be executed; None: it would change nothing.

        Args:
            name: name of the stack.
            text: the template.
            is_new: whether the stack has no resources.
            is_first: whether the stack does not exist yet. It is then made, and removed again if the template is
                refused.
        """
        client = self.client("cloudformation")
        place = {"TemplateBody": text}
        if len(text.encode()) > _LONGEST_BODY_BYTES:
            place = {"TemplateURL": self._upload_template(name, text)}
        with explained():
            made = client.create_change_set(
                StackName=name,
                ChangeSetName=f"thawd-{secrets.token_hex(8)}",
                ChangeSetType="CREATE" if is_new else "UPDATE",
                Capabilities=_CAPABILITIES,
                **place,
            )
            for _ in _looks(_CHANGE_SET_TIMEOUT_S):
                found: dict[str, Any] = client.describe_change_set(ChangeSetName=made["Id"], StackName=made["StackId"])
                if found["Status"] in ("CREATE_COMPLETE", "FAILED"):
                    break
            else:
                raise DeploymentError(f"CloudFormation was still making a change set after {_CHANGE_SET_TIMEOUT_S} s")
            if found["Status"] == "CREATE_COMPLETE":
                return {"Id": made["Id"], "StackId": made["StackId"]}
            client.delete_change_set(ChangeSetName=made["Id"])
            if is_first:
                client.delete_stack(StackName=made["StackId"])
        reason = found.get("StatusReason", "")
        if any(text in reason for text in _NO_CHANGES):
            return None
        raise DeploymentError(f"CloudFormation refused the template: {reason}")

    def _wait(self, stack_id: str, seen: set[str], report: Report) -> tuple[str, list[StackEvent]]:
        """Report the stack's new events until its change has ended; return its status and the failures."""
        failures: list[StackEvent] = []
        for _ in _looks(None):
            with explained():
                [stack] = self.client("cloudformation").describe_stacks(StackName=stack_id)["Stacks"]
            for entry in reversed([event for event in self._events(stack_id) if event["EventId"] not in seen]):
                seen.add(entry["EventId"])
                event = StackEvent(
                    resource=entry["LogicalResourceId"],
                    type=entry["ResourceType"],
                    status=entry["ResourceStatus"],
                    reason=entry.get("ResourceStatusReason", ""),
                )
                report(event)
                if event.status.endswith("_FAILED"):
                    failures.append(event)
            status: str = stack["StackStatus"]
            if not status.endswith("_IN_PROGRESS"):
                return status, failures
        raise AssertionError("looks without a time limit do not end")

    def _refuse_failed(
        self, name: str, stack_id: str, status: str, failures: list[StackEvent], *, report: Report
    ) -> None:
        said = f"the stack {name} was not deployed: {_first(failures)}"
        if status == "ROLLBACK_COMPLETE":  # the first deployment failed and left an empty stack
            self._delete(DeployedStack(stack_id=stack_id, status=status, reason="", template=None), report)
            raise DeploymentError(f"{said}. Everything was deleted again")
        if status == "UPDATE_ROLLBACK_COMPLETE":
            raise DeploymentError(f"{said}. Everything is as it was before")
        if status == "UPDATE_ROLLBACK_FAILED":
            raise DeploymentError(
                f"{said}. The rollback failed, too. Remove its cause, then run: aws cloudformation "
                f"continue-update-rollback --stack-name {name}"
            )
        raise DeploymentError(f"{said}. The stack is {status}; thawd deploy aws destroy deletes it")

    def _events(self, stack_id: str) -> Iterator[dict[str, Any]]:
        """Yield the stack's events, the newest first."""
        with explained():
            for page in (
                self.client("cloudformation").get_paginator("describe_stack_events").paginate(StackName=stack_id)
            ):
                yield from page["StackEvents"]

    def _assets_bucket(self) -> tuple[str, str]:
        """Return the name of the bucket for archives, which is made if it is missing, and the account that owns it."""
        from botocore.exceptions import ClientError

        owner = self.account_id()
        bucket = naming.ASSETS_BUCKET.replace("${AWS::AccountId}", owner).replace("${AWS::Region}", self.region)
        client = self.client("s3")
        with explained():
            try:
                client.head_bucket(Bucket=bucket, ExpectedBucketOwner=owner)
            except ClientError as error:
                if error.response["ResponseMetadata"]["HTTPStatusCode"] != 404:
                    raise DeploymentError(
                        f"the bucket {bucket} for the code cannot be used, it may belong to another account: {error}"
                    ) from None
                place = {"CreateBucketConfiguration": {"LocationConstraint": self.region}}
                client.create_bucket(Bucket=bucket, **({} if self.region == "us-east-1" else place))
        return bucket, owner

    def _has_object(self, bucket: str, key: str, owner: str) -> bool:
        from botocore.exceptions import ClientError

        try:
            self.client("s3").head_object(Bucket=bucket, Key=key, ExpectedBucketOwner=owner)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
                return False
            raise
        return True

    def _upload_template(self, stack: str, text: str) -> str:
        bucket, owner = self._assets_bucket()
        key = f"{stack}/{naming.digest(text, length=64)}.template.json"
        with explained():
            self.client("s3").put_object(Bucket=bucket, Key=key, Body=text.encode(), ExpectedBucketOwner=owner)
        base = self._access.endpoint_url
        return f"https://{bucket}.s3.{self.region}.amazonaws.com/{key}" if base is None else f"{base}/{bucket}/{key}"

    def _empty_bucket(self, bucket: str) -> None:
        client = self.client("s3")
        with explained():
            for page in client.get_paginator("list_object_versions").paginate(Bucket=bucket):
                listed = [*page.get("Versions", []), *page.get("DeleteMarkers", [])]
                named = [{"Key": entry["Key"], "VersionId": entry["VersionId"]} for entry in listed]
                if not named:
                    continue
                answer = client.delete_objects(Bucket=bucket, Delete={"Objects": named, "Quiet": True})
                for error in answer.get("Errors", []):
                    raise DeploymentError(f"the object {error['Key']} of {bucket} was not deleted: {error['Message']}")

    def _remove_archives(self, stack: str) -> None:
        """Remove a stack's archives, and their bucket if no other stack has archives in it."""
        from botocore.exceptions import ClientError

        bucket = naming.ASSETS_BUCKET.replace("${AWS::AccountId}", self.account_id())
        bucket = bucket.replace("${AWS::Region}", self.region)
        client = self.client("s3")
        with explained():
            try:
                for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{stack}/"):
                    for entry in page.get("Contents", []):
                        client.delete_object(Bucket=bucket, Key=entry["Key"])
                client.delete_bucket(Bucket=bucket)
            except ClientError as error:
                if error.response["Error"]["Code"] not in ("NoSuchBucket", "BucketNotEmpty"):
                    raise


def _require_unchanging(name: str, stack: DeployedStack | None) -> None:
    if stack is not None and stack.is_changing:
        raise DeploymentError(
            f"the stack {name} is {stack.status}: another deployment runs; wait for it: thawd deploy aws status"
        )


def _first(failures: list[StackEvent]) -> str:
    """Return the resource and reason of the first failure that is not a consequence of another one.

    After a failure, CloudFormation cancels the other operations, and reports them as failed.
    """
    causes = [event for event in failures if "cancelled" not in event.reason] or failures
    if not causes:
        return "CloudFormation gave no reason"
    return f"{causes[0].resource} ({causes[0].type}): {(causes[0].reason or causes[0].status).rstrip('.')}"


def _looks(timeout_s: float | None) -> Iterator[None]:
    """Yield whenever it is time to poll again: first after short pauses, then after longer ones, until the time-out."""
    begun_s, pause_s = time.monotonic(), _FIRST_LOOK_S
    while timeout_s is None or time.monotonic() < begun_s + timeout_s:
        yield
        time.sleep(pause_s)
        pause_s = min(_LAST_LOOK_S, pause_s * 1.5)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Inside the ``with`` block, exceptions of boto3 become `DeploymentError`."""
    try:
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
    except ImportError:
        raise DeploymentError("deployments to AWS need boto3: pip install 'thawd[aws]'") from None
    try:
        yield
    except NoCredentialsError:
        raise DeploymentError("there are no AWS credentials; run aws configure, or give --profile") from None
    except (Boto3Error, BotoCoreError, ClientError) as error:
        raise DeploymentError(f"AWS: {error}") from error
