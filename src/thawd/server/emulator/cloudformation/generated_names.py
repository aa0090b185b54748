"""Names of resources that a template does not name: the stack's name, the logical id and random characters.

Source: CloudFormation template reference, "Name type".
"""

from __future__ import annotations

import re
import secrets
import string

_LETTERS = string.ascii_uppercase + string.digits
_RANDOM = 12
_MOST = {
    "AWS::Lambda::Function": 64,
    "AWS::IAM::Role": 64,
    "AWS::IAM::User": 64,
    "AWS::S3::Bucket": 63,
    "AWS::Scheduler::Schedule": 64,
    "AWS::Scheduler::ScheduleGroup": 64,
    "AWS::Events::Rule": 64,
    "AWS::SQS::Queue": 80,
    "AWS::StepFunctions::StateMachine": 80,
    "AWS::ElasticLoadBalancingV2::TargetGroup": 32,
    "AWS::ElasticLoadBalancingV2::LoadBalancer": 32,
    "AWS::Cognito::UserPool": 128,
}
_MOST_OTHERS = 100
_LOWER = ("AWS::S3::Bucket", "AWS::ECR::Repository")
_SUFFIXES = {"AWS::SQS::Queue": ("FifoQueue", ".fifo"), "AWS::SNS::Topic": ("FifoTopic", ".fifo")}


def generated(kind: str, stack: str, logical_id: str, properties: dict[str, object] | None = None) -> str:
    """Return a new name for a resource of this type."""
    letters = "".join(secrets.choice(_LETTERS) for _ in range(_RANDOM))
    wanted, suffix = _SUFFIXES.get(kind, ("", ""))
    if not wanted or str((properties or {}).get(wanted)).lower() != "true":
        suffix = ""
    most = _MOST.get(kind, _MOST_OTHERS) - _RANDOM - 2 - len(suffix)
    half = most // 2
    if len(stack) + len(logical_id) > most:
        stack = stack[: max(half, most - len(logical_id))]
        logical_id = logical_id[: most - len(stack)]
    name = f"{stack}-{logical_id}-{letters}{suffix}"
    if kind in _LOWER:
        name = re.sub(r"-+", "-", name.lower())
    return name
