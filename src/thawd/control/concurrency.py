"""Reserved and provisioned concurrency, and the limits of the account.

Source: AWS Lambda API reference, the operations that the docstrings name.
"""

from __future__ import annotations

from typing import Any

from thawd.control import paging
from thawd.control.deployments import Deployments
from thawd.control.function_records import SNAP_START_ON, Family, Parameters, assigned, now_text, without
from thawd.control.names import function_arn, is_version, parse_function
from thawd.control.quotas import Quotas
from thawd.control.registry import Registry, check_undeclared
from thawd.errors import (
    InvalidParameterValueException,
    ProvisionedConcurrencyConfigNotFoundException,
    ResourceConflictException,
)
from thawd.resources import LATEST
from thawd.stores.uploaded_code import MAX_UNZIPPED_BYTES, MAX_ZIP_BYTES

TOTAL_CODE_BYTES = 80_530_636_800
"""The quota for all code, as GetAccountSettings shows it: AWS's value, which thawd does not enforce."""
LEAST_UNRESERVED = 1
"""Environments that must remain for functions without reserved concurrency."""


class Concurrency:
    """Reserved and provisioned concurrency, and the account's limits."""

    def __init__(self, registry: Registry, deployments: Deployments, quotas: Quotas) -> None:
        self._registry = registry
        self._deployments = deployments
        self._quotas = quotas

    async def put(self, parameters: Parameters) -> dict[str, Any]:
        """PutFunctionConcurrency."""
        name, qualifier = parse_function(parameters["FunctionName"])
        if qualifier is not None:
            raise InvalidParameterValueException(
                "This operation is permitted on Lambda functions only. Aliases and versions do not support this "
                "operation. Please specify either a function name or an unqualified function ARN."
            )
        self._registry.record(name, LATEST)
        family = self._registry.family(name)
        check_undeclared(family, "The reserved concurrency of")
        count = parameters["ReservedConcurrentExecutions"]
        others = sum(_reserved(other) or 0 for other in self._registry.families.values() if other.name != family.name)
        if self._deployments.most_at_once() - others - count < LEAST_UNRESERVED:
            raise InvalidParameterValueException(
                "Specified ReservedConcurrentExecutions for function decreases account's UnreservedConcurrentExecution "
                f"below its minimum value of [{LEAST_UNRESERVED}]."
            )
        if sum(family.provisioned.values()) > count:
            total = sum(family.provisioned.values())
            raise InvalidParameterValueException(
                f" ReservedConcurrentExecutions  {count} should not be lower than function's total provisioned "
                f"concurrency [{total}].",
                is_typed=False,
            )
        await self._set(family, count)
        return {"ReservedConcurrentExecutions": count}

    async def delete(self, parameters: Parameters) -> None:
        """DeleteFunctionConcurrency."""
        family = self._unqualified(parameters)
        check_undeclared(family, "The reserved concurrency of")
        await self._set(family, None)

    async def _set(self, family: Family, count: int | None) -> None:
        family.reserved = count
        await self._registry.save(family)
        self._deployments.settings_changed(family)

    def get(self, parameters: Parameters) -> dict[str, Any]:
        """GetFunctionConcurrency."""
        family = self._unqualified(parameters)
        count = _reserved(family)
        return {} if count is None else {"ReservedConcurrentExecutions": count}

    def _unqualified(self, parameters: Parameters) -> Family:
        return self._registry.family(parse_function(parameters["FunctionName"]).name)

    async def provision(self, parameters: Parameters) -> dict[str, Any]:
        """PutProvisionedConcurrencyConfig."""
        unpublished = "Provisioned Concurrency Configs cannot be applied to unpublished function versions."
        family, qualifier = self._qualified(parameters, unpublished)
        count = parameters["ProvisionedConcurrentExecutions"]
        record = self._registry.record(family.name, qualifier)
        number = record.version
        if self._quotas.is_aws and record.snap_start == SNAP_START_ON:
            raise InvalidParameterValueException(
                "Provisioned Concurrency is not supported for SnapStart enabled functions. With server.limits = "
                '"machine", thawd allows it'
            )
        for other in family.provisioned:
            if other != qualifier and self._registry.record(family.name, other).version == number:
                raise ResourceConflictException(
                    "Version is pointed by a Provisioned Concurrency alias"
                    if is_version(qualifier)
                    else "Alias can't be used for Provisioned Concurrency configuration on an already Provisioned "
                    "version"
                )
        self._check_room(family, qualifier, count)
        family.provisioned = assigned(family.provisioned, qualifier, count)
        family.provisioned_modified = assigned(family.provisioned_modified, qualifier, now_text())
        await self._registry.save(family)
        self._deployments.provision(family, qualifier, count)
        return self._document(family, qualifier)

    def _check_room(self, family: Family, qualifier: str, count: int) -> None:
        """Refuse more provisioned environments than the function or the machine can have."""
        others = sum(value for name, value in family.provisioned.items() if name != qualifier)
        if family.reserved is not None:
            if count + others > family.reserved:
                raise InvalidParameterValueException(
                    "Requested Provisioned Concurrency should not be greater than the reservedConcurrentExecution for "
                    "function"
                )
            return
        unreserved = self._unreserved()
        if count + others > unreserved:
            raise InvalidParameterValueException(
                "Specified ConcurrentExecutions for function is greater than account's unreserved concurrency "
                f"[{unreserved}].",
                is_typed=False,
            )

    def get_provisioned(self, parameters: Parameters) -> dict[str, Any]:
        """GetProvisionedConcurrencyConfig."""
        family, qualifier = self._qualified(parameters)
        if qualifier not in family.provisioned:
            raise ProvisionedConcurrencyConfigNotFoundException(
                "No Provisioned Concurrency Config found for this function"
            )
        return self._document(family, qualifier)

    async def delete_provisioned(self, parameters: Parameters) -> None:
        """DeleteProvisionedConcurrencyConfig."""
        family, qualifier = self._qualified(parameters)
        if qualifier not in family.provisioned:
            return
        family.provisioned = without(family.provisioned, qualifier)
        family.provisioned_modified = without(family.provisioned_modified, qualifier)
        await self._registry.save(family)
        self._deployments.provision(family, qualifier, None)

    def list_provisioned(self, parameters: Parameters) -> dict[str, Any]:
        """ListProvisionedConcurrencyConfigs."""
        family = self._unqualified(parameters)
        chosen, marker = paging.page([(name, name) for name in sorted(family.provisioned)], parameters)
        configs = [{"FunctionArn": function_arn(family.name, name), **self._document(family, name)} for name in chosen]
        return paging.with_marker({"ProvisionedConcurrencyConfigs": configs}, marker)

    def _qualified(
        self,
        parameters: Parameters,
        latest: str = "The function resource provided must be an alias or a published version.",
    ) -> tuple[Family, str]:
        """The function and the qualifier of a request; `latest` is the error's text if the qualifier is ``$LATEST``."""
        name, qualifier = parse_function(parameters["FunctionName"], parameters.get("Qualifier"))
        if qualifier is None or qualifier == LATEST:
            raise InvalidParameterValueException(latest)
        number = self._registry.alias_or_version(name, qualifier).version
        family = self._registry.family(name)
        if number == LATEST:
            raise InvalidParameterValueException(
                "Alias with weights or to $LATEST cannot be used with Provisioned Concurrency"
            )
        return family, qualifier

    def _document(self, family: Family, qualifier: str) -> dict[str, Any]:
        wanted = family.provisioned[qualifier]
        current = self._deployments.provisioned(family, qualifier)
        status = "READY" if current.allocated >= wanted else "FAILED" if current.failure else "IN_PROGRESS"
        made = {
            "RequestedProvisionedConcurrentExecutions": wanted,
            "AvailableProvisionedConcurrentExecutions": min(current.allocated, wanted),
            "AllocatedProvisionedConcurrentExecutions": min(current.allocated, wanted),
            "Status": status,
            "LastModified": family.provisioned_modified.get(qualifier, ""),
        }
        return made if status != "FAILED" else {**made, "StatusReason": current.failure}

    def _code_bytes(self) -> int:
        """The size of the code of all versions of functions and layers."""
        layers = (version for layer in self._registry.layers.values() for version in layer.versions.values())
        functions = sum(record.code_size for record in self._registry.all_records())
        return functions + sum(version.code_size for version in layers)

    def _unreserved(self) -> int:
        """The environments that no function has reserved."""
        reserved = sum(_reserved(family) or 0 for family in self._registry.families.values())
        return self._deployments.most_at_once() - reserved

    def account(self, parameters: Parameters) -> dict[str, Any]:
        """GetAccountSettings."""
        most = self._deployments.most_at_once()
        return {
            "AccountLimit": {
                "TotalCodeSize": TOTAL_CODE_BYTES,
                "CodeSizeUnzipped": MAX_UNZIPPED_BYTES,
                "CodeSizeZipped": MAX_ZIP_BYTES,
                "ConcurrentExecutions": most,
                "UnreservedConcurrentExecutions": self._unreserved(),
            },
            "AccountUsage": {
                "TotalCodeSize": self._code_bytes(),
                "FunctionCount": sum(LATEST in family.versions for family in self._registry.families.values()),
            },
        }


def _reserved(family: Family) -> int | None:
    """Reserved concurrency of a function, set through the API or declared; None: it has none."""
    latest = family.versions.get(LATEST)
    return latest.function.reserved_concurrency if family.declared and latest is not None else family.reserved
