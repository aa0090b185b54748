"""The tenant that an HTTP request names, in the header ``X-Amz-Tenant-Id``.

Source: AWS Lambda API reference, "Invoke", TenantId.
"""

from __future__ import annotations

import re

from thawd.errors import ValidationException
from thawd.gateway.http import Scope, header
from thawd.scheduling.dispatcher import Dispatcher
from thawd.scheduling.tenant_pools import check_tenant

_HEADER = b"x-amz-tenant-id"
_PATTERN = r"[a-zA-Z0-9\._:\/=+\-@ ]+"
_TENANT_ID = re.compile(_PATTERN)
_LONGEST = 256


def tenant_of(scope: Scope) -> str | None:
    """The tenant in the request's header; None if there is no such header.

    Raises:
        ValidationException: the value is not valid (400).
    """
    value = header(scope, _HEADER)
    if value is None:
        return None
    tenant_id = value.decode("latin-1")
    constraints = []
    if not _TENANT_ID.fullmatch(tenant_id):
        constraints.append(f"Member must satisfy regular expression pattern: {_PATTERN}")
    if len(tenant_id) > _LONGEST:
        constraints.append(f"Member must have length less than or equal to {_LONGEST}")
    if not tenant_id:
        constraints.append("Member must have length greater than or equal to 1")
    if constraints:
        problems = [f"Value '{tenant_id}' at 'tenantId' failed to satisfy constraint: {each}" for each in constraints]
        count = len(problems)
        raise ValidationException(
            f"{count} validation error{'' if count == 1 else 's'} detected: {'; '.join(problems)}"
        )
    return tenant_id


def checked_tenant(scope: Scope, dispatcher: Dispatcher, function: str, qualifier: str | None = None) -> str | None:
    """The tenant in the request's header, for an invocation through the Lambda API.

    Raises:
        InvalidParameterValueException: the function separates tenants and the request names none, or the other way
            round (400).
        ResourceNotFoundException: there is no such function or version (404).
        ValidationException: the value is not valid (400).
    """
    tenant_id = tenant_of(scope)
    check_tenant(dispatcher.entry(function, qualifier).function, tenant_id)
    return tenant_id


def routed_tenant(scope: Scope, dispatcher: Dispatcher, function: str, qualifier: str | None = None) -> str | None:
    """The tenant for a request to a route or function URL; None if the function does not separate tenants.

    Other functions get the header in their event, like any other header.

    Raises:
        InvalidParameterValueException: the function separates tenants and the request names none (400).
        ResourceNotFoundException: there is no such function or version (404).
        ValidationException: the value is not valid (400).
    """
    if not dispatcher.entry(function, qualifier).function.tenants:
        return None
    return checked_tenant(scope, dispatcher, function, qualifier)
