"""Policies of emulated stacks: one that another stack has put is not overwritten."""

from __future__ import annotations

import json
from typing import Any

from tests.integration.emulated import EmulatedAws
from tests.integration.stack_operations import stack_status


def policy(action: str, **more: Any) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": action, "Resource": "*", **more}]}


def of_bucket(action: str) -> dict[str, Any]:
    properties = {"Bucket": "papers", "PolicyDocument": policy(action, Principal="*")}
    return {"Type": "AWS::S3::BucketPolicy", "Properties": properties}


def inline(action: str, *roles: str) -> dict[str, Any]:
    properties = {"PolicyName": "reads", "PolicyDocument": policy(action), "Roles": list(roles)}
    return {"Type": "AWS::IAM::Policy", "Properties": properties}


def test_a_policy_that_another_stack_has_put_is_not_overwritten() -> None:
    with EmulatedAws() as aws:
        aws.connect_to_itself()
        stacks, buckets, iam = (aws.client(service) for service in ("cloudformation", "s3", "iam"))
        buckets.create_bucket(Bucket="papers")
        for role in ("reader", "writer"):
            iam.create_role(RoleName=role, AssumeRolePolicyDocument=json.dumps(policy("sts:AssumeRole", Principal="*")))

        def deploy(operation: str, name: str, **resources: Any) -> tuple[str, str]:
            given = {"TemplateBody": json.dumps({"Resources": resources}), "Capabilities": ["CAPABILITY_IAM"]}
            getattr(stacks, operation)(StackName=name, **given)
            status = stack_status(stacks, name)
            return status, str(stacks.describe_stack_events(StackName=name)["StackEvents"])

        def actions() -> tuple[str, str]:
            document = json.loads(buckets.get_bucket_policy(Bucket="papers")["Policy"])
            found = iam.get_role_policy(RoleName="reader", PolicyName="reads")["PolicyDocument"]
            return document["Statement"][0]["Action"], found["Statement"][0]["Action"]

        first = {"A": of_bucket("s3:GetObject"), "B": inline("s3:GetObject", "reader")}
        status, events = deploy("create_stack", "first", **first)
        assert status == "CREATE_COMPLETE", events
        status, events = deploy("create_stack", "second", A=of_bucket("s3:PutObject"))
        assert status == "ROLLBACK_COMPLETE"
        assert "The bucket policy already exists on bucket papers." in events
        assert deploy("create_stack", "third", B=inline("s3:PutObject", "writer"))[0] == "CREATE_COMPLETE"
        status, events = deploy("update_stack", "third", B=inline("s3:PutObject", "writer", "reader"))
        assert status == "UPDATE_ROLLBACK_COMPLETE"
        assert "The role reader already has an inline policy reads" in events
        status, events = deploy("create_stack", "fourth", B=inline("s3:PutObject", "reader"))
        assert status == "ROLLBACK_COMPLETE"
        for name in ("second", "third", "fourth"):
            stacks.delete_stack(StackName=name)
            assert stack_status(stacks, name) == "DELETE_COMPLETE"
        assert actions() == ("s3:GetObject", "s3:GetObject")
        changed = {"A": of_bucket("s3:ListBucket"), "B": inline("s3:ListBucket", "reader", "writer")}
        assert deploy("update_stack", "first", **changed)[0] == "UPDATE_COMPLETE"
        assert actions() == ("s3:ListBucket", "s3:ListBucket")
