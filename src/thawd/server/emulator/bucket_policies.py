"""Makes the emulated S3 ignore the statements of bucket policies that have conditions.

moto does not evaluate conditions: it would apply each statement as if its condition were true. Then the policy with
which CDK requires encrypted connections would deny all requests. This module runs in the emulator's own process.
"""

from __future__ import annotations

import functools
import json
from typing import Any


def install() -> None:
    """Change ``moto.s3.models``: buckets evaluate only the statements of their policies that have no condition."""
    from moto.s3.models import FakeBucket

    def get_permission(bucket: Any, action: str, resource: str) -> Any:
        from moto.iam.access_control import PermissionResult  # it imports the module that is changed here

        policy = None if bucket.policy is None else _without_conditions(bytes(bucket.policy))
        return PermissionResult.NEUTRAL if policy is None else policy.is_action_permitted(action, resource)

    setattr(FakeBucket, "get_permission", get_permission)  # noqa: B010 - mypy forbids to assign to a method


@functools.lru_cache(256)
def _without_conditions(text: bytes) -> Any:
    """Return moto's policy with the statements that have no condition; None: there are no such statements."""
    from moto.iam.access_control import IAMPolicy

    policy = json.loads(text)
    given = policy.get("Statement", [])
    statements = [one for one in (given if isinstance(given, list) else [given]) if not one.get("Condition")]
    return IAMPolicy(json.dumps({**policy, "Statement": statements})) if statements else None
