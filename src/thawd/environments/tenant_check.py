"""Checks that an environment runs the invocations of one tenant only. It has no side effects.

The pools (`thawd.scheduling.tenant_pools`) lease a tenant's environments to that tenant alone. This check holds even if
they had a bug: an invocation of another tenant does not reach the process.
"""

from __future__ import annotations

from thawd.errors import ServiceException
from thawd.invocation import Invocation


def check_tenant(tenant_id: str | None, *invocations: Invocation) -> None:
    """Check that an environment of the tenant `tenant_id` may run `invocations`.

    Args:
        tenant_id: the tenant; None: the environment belongs to no tenant.
        invocations: the invocations that are to run.

    Raises:
        ServiceException: an invocation names another tenant, or names one and the environment has none (500).
    """
    for each in invocations:
        if each.tenant_id != tenant_id:
            raise ServiceException("the execution environment belongs to another tenant")
