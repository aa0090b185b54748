"""Carries out deployments: reads and changes stacks.

AWS keeps the state, so a process that is killed leaves nothing half done: CloudFormation finishes or rolls back the
change that it has begun, and the next deployment continues from the result. If two deployments were planned at the same
time, the second is refused: the change set is made first, then the deployed template is compared with the plan's, and a
change set that was made before another deployment began cannot be executed after it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from thawd.deploy.aws import change_sets, image_repository, project_plan, stack_events
from thawd.deploy.aws.account import AwsSession, explained
from thawd.deploy.aws.artifact_bucket import ArtifactBucket
from thawd.deploy.aws.assets import Asset
from thawd.deploy.aws.change_sets import PLANNED, ChangeSet, ChangeSetRequest
from thawd.deploy.aws.stack import DeploymentError
from thawd.deploy.aws.stack_events import Report, StackEvent, cause_of
from thawd.deploy.templates.template_parsing import parse

_MARK = "deployed by thawd"
_EMPTY = (PLANNED, "ROLLBACK_COMPLETE", "DELETE_COMPLETE")
"""States of stacks without resources."""
_HOLDS_DATA = ("AWS::S3::Bucket", "AWS::DynamoDB::Table")
_KEEPING = ("Retain", "Snapshot", "RetainExceptOnCreate")
_LAST_STATES = ("CREATE_COMPLETE", "UPDATE_COMPLETE")


class DeployedStack(msgspec.Struct, frozen=True, kw_only=True):
    """A stack that exists.

    Attributes:
        stack_id: its ARN.
        status: its status, such as ``UPDATE_COMPLETE``.
        reason: CloudFormation's reason of the status; empty if there is none.
        template: its template; None: it has no resources.
        outputs: values of its outputs.
        is_protected: whether it is protected against deletion.
        exports: names of the exports that other stacks may import.
    """

    stack_id: str
    status: str
    reason: str
    template: dict[str, Any] | None
    outputs: dict[str, str] = {}
    is_protected: bool = False
    exports: tuple[str, ...] = ()

    @property
    def is_changing(self) -> bool:
        """Whether CloudFormation is changing the stack."""
        return self.status.endswith("_IN_PROGRESS") and self.status not in _EMPTY


class AwsAccount(AwsSession):
    """The stacks of an account and region of AWS."""

    def read_stack(self, name: str) -> DeployedStack | None:
        """Return a stack with its template; None: there is none.

        Raises:
            DeploymentError: another tool made the stack.
        """
        found = self.find_stack(name)
        if found is None:
            return None
        template = None
        if found["StackStatus"] != PLANNED:
            with explained():
                template = self.client("cloudformation").get_template(StackName=name, TemplateStage="Original")[
                    "TemplateBody"
                ]
        if isinstance(template, str):
            template = json.loads(template) if template.lstrip().startswith("{") else {}
        if template is not None and not is_of_thawd(template):
            raise DeploymentError(
                f"the stack {name} was not made by thawd; name another one with --stack or stack in [deploy.aws]"
            )
        return described(found, None if found["StackStatus"] in _EMPTY else json.loads(json.dumps(template)))

    def find_stack(self, name: str) -> dict[str, Any] | None:
        """Return a stack, whichever tool made it, as CloudFormation describes it; None: there is none."""
        from botocore.exceptions import ClientError

        with explained():
            try:
                [found] = self.client("cloudformation").describe_stacks(StackName=name)["Stacks"]
            except ClientError as error:
                if "does not exist" in str(error):
                    return None
                raise
        return dict(found)

    def upload(self, archives: tuple[Asset, ...], *, report: Callable[[str], None]) -> None:
        """Upload the archives that the bucket does not have yet. `report` is called with the key of each of them."""
        ArtifactBucket(self).upload(archives, report=report)

    def push_images(self, stack: str, digests: tuple[str, ...], *, store: Path, report: Callable[[str], None]) -> None:
        """Push the images of a stack's functions; see `image_repository.push`."""
        image_repository.push(self, stack, digests, store=store, report=report)

    def deploy(
        self, name: str, text: str, *, planned: Mapping[str, Any] | None, report: Report
    ) -> tuple[StackEvent, ...]:
        """Create or update a stack, and wait until it is complete.

        Args:
            name: name of the stack.
            text: the template.
            planned: the deployed template when the plan was made; None: there was no stack.
            report: called with each event of the stack.

        Returns:
            Resources that the stack does not have any more, and that CloudFormation could not delete.

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
        is_first, is_new = stack is None, stack is None or stack.template is None
        change_set = change_sets.create(self, ChangeSetRequest(stack=name, text=text, is_new=is_new, is_first=is_first))
        if change_set is None:
            return ()
        # From here on, CloudFormation refuses the change set if another deployment has begun.
        if not is_new and ((stack := self.read_stack(name)) is None or stack.template != planned):
            change_sets.discard(self, change_set)
            raise DeploymentError(f"the stack {name} was changed since the plan was made; plan again")
        return self.execute(name, change_set, report=report)

    def execute(self, name: str, change_set: ChangeSet, *, report: Report) -> tuple[StackEvent, ...]:
        """Execute a change set of a stack, and wait until it is complete.

        Returns:
            Resources that the stack does not have any more, and that CloudFormation could not delete, such as a bucket
            with objects: it tries that after the update is complete, and a failure does not end the update.

        Raises:
            DeploymentError: another deployment began at the same time, or the change failed and was rolled back.
        """
        status, failures = change_sets.execute(self, name, change_set, report=report)
        if status not in _LAST_STATES:
            self._refuse_failed(name, change_set.stack_id, status, failures, report=report)
        left = {event.resource: event for event in failures if event.status == "DELETE_FAILED"}
        return tuple(left.values())

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
            held = [each for each in self.resources(stack.stack_id) if each["type"] in _HOLDS_DATA]
            self._delete_with(stack, held, deletes_data=deletes_data, report=report)
        ArtifactBucket(self).remove(name)
        image_repository.remove(self, name, must_exist=stack is not None and _has_images(stack.template or {}))
        return stack is not None

    def destroy_project(self, name: str, document: Mapping[str, Any], *, deletes_data: bool, report: Report) -> bool:
        """Delete a stack that was made of another tool's project, and its code. See `destroy`.

        Args:
            name: name of the stack.
            document: the project's template. A stack that has nothing of it is that of another project.
            deletes_data: whether buckets and tables may be deleted with their contents.
            report: gets each event of the stack.
        """
        found = self.find_stack(name)
        if found is None:
            return False
        stack = described(found, None)
        _require_unchanging(name, stack)
        if is_of_thawd(found):
            raise DeploymentError(f"the stack {name} was made of a thawd.toml; delete it in the folder of that")
        self.require_same_project(name, document)
        with explained():
            body = self.client("cloudformation").get_template(StackName=name, TemplateStage="Processed")["TemplateBody"]
        template = parse(body) if isinstance(body, str) else json.loads(json.dumps(body))
        kept = {
            logical_id
            for logical_id, resource in template.get("Resources", {}).items()
            if resource.get("DeletionPolicy", "Delete") in _KEEPING
        }
        held = [
            each
            for each in self.resources(stack.stack_id)
            if each["type"] in project_plan.HOLDS_DATA and each["resource"] not in kept
        ]
        self._delete_with(stack, held, deletes_data=deletes_data, report=report)
        ArtifactBucket(self).remove(name)
        image_repository.remove(self, name, must_exist=_has_images(template))
        return True

    def _delete_with(
        self, stack: DeployedStack, held: list[dict[str, str]], *, deletes_data: bool, report: Report
    ) -> None:
        """Delete a stack with the resources that hold its data.

        Raises:
            DeploymentError: there are some, and `deletes_data` is false, or the deletion failed.
        """
        held = [each for each in held if each["name"] and each["status"] != "DELETE_COMPLETE"]
        if held and not deletes_data:
            named = ", ".join(sorted(each["name"] for each in held))
            raise DeploymentError(f"{named} would be deleted with all data; add --delete-data if that is wanted")
        self._require_deletable(stack)  # otherwise the buckets would be emptied, and the stack would stay
        for each in held:
            if each["type"] == "AWS::S3::Bucket":
                self._empty_bucket(each["name"])
        self._delete(stack, report)

    def _require_deletable(self, stack: DeployedStack) -> None:
        """Raise `DeploymentError` if CloudFormation would refuse to delete a stack."""
        from botocore.exceptions import ClientError

        if stack.is_protected:
            raise DeploymentError(
                "the stack is protected against deletion; if it may be deleted, run: aws cloudformation "
                f"update-termination-protection --no-enable-termination-protection --stack-name {stack.stack_id}"
            )
        for export in stack.exports:
            with explained():
                try:
                    users = self.client("cloudformation").list_imports(ExportName=export)["Imports"]
                except ClientError as error:
                    if "is not imported" not in str(error):
                        raise
                    continue
            if users:
                raise DeploymentError(f"the export {export} is used by the stack {users[0]}; delete that one first")

    def require_same_project(self, name: str, document: Mapping[str, Any]) -> None:
        """Raise `DeploymentError` if a stack has resources, and none with a logical id of a template."""
        section = document.get("Resources")
        own = section.keys() if isinstance(section, dict) else set()
        ids = {each["resource"] for each in self.resources(name) if each["status"] != "DELETE_COMPLETE"}
        has_loops = any(each.startswith("Fn::ForEach") for each in own)
        if ids and not has_loops and not ids & own:
            raise DeploymentError(
                f"the stack {name} has nothing of the template's resources, so it belongs to another project; name "
                "another stack with --stack"
            )

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
        seen = stack_events.seen_events(self, stack.stack_id)
        with explained():
            self.client("cloudformation").delete_stack(StackName=stack.stack_id)
        status, failures = stack_events.wait(self, stack.stack_id, seen, report)
        if status != "DELETE_COMPLETE":
            raise DeploymentError(f"the stack was not deleted, it is {status}: {cause_of(failures)}")

    def _refuse_failed(
        self, name: str, stack_id: str, status: str, failures: list[StackEvent], *, report: Report
    ) -> None:
        said = f"the stack {name} was not deployed: {cause_of(failures)}"
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


def described(found: Mapping[str, Any], template: dict[str, Any] | None) -> DeployedStack:
    """Return a stack that CloudFormation has described."""
    return DeployedStack(
        stack_id=found["StackId"],
        status=found["StackStatus"],
        reason=found.get("StackStatusReason", ""),
        template=template,
        outputs={output["OutputKey"]: output["OutputValue"] for output in found.get("Outputs", [])},
        is_protected=found.get("EnableTerminationProtection", False),
        exports=tuple(output["ExportName"] for output in found.get("Outputs", []) if "ExportName" in output),
    )


def is_of_thawd(stack: Mapping[str, Any]) -> bool:
    """Return whether a template, or a stack as CloudFormation describes it, was made of a ``thawd.toml``."""
    return str(stack.get("Description", "")).endswith(_MARK)


def _has_images(template: Mapping[str, Any]) -> bool:
    resources = template.get("Resources", {}).values()
    return any(each.get("Properties", {}).get("PackageType") == "Image" for each in resources)


def _require_unchanging(name: str, stack: DeployedStack | None) -> None:
    if stack is not None and stack.is_changing:
        raise DeploymentError(
            f"the stack {name} is {stack.status}: another deployment runs; wait for it: thawd deploy aws status"
        )
