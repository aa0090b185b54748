"""Waits for the operations of CloudFormation, which run in the background."""

from __future__ import annotations

from typing import Any

from tests.integration.conftest import eventually


def stack_status(stacks: Any, name: str) -> str:
    """Wait until no operation on a stack runs, and return its status.

    Args:
        stacks: a client of CloudFormation.
        name: the stack's name or id.
    """

    def ended() -> str | None:
        try:
            status = str(stacks.describe_stacks(StackName=name)["Stacks"][0]["StackStatus"])
        except stacks.exceptions.ClientError as error:
            if "does not exist" in str(error):
                return "DELETE_COMPLETE"
            raise
        is_busy = status.endswith("_IN_PROGRESS") and status != "REVIEW_IN_PROGRESS"
        return None if is_busy else status

    return str(eventually(ended, what=f"the end of the operation on {name}"))
