"""Code signing configurations: which publishers may sign a function's code, and what happens to other code.

The configurations are stored and shown. thawd cannot verify signatures, because AWS Signer makes them. So it refuses
new code for a function whose configuration demands a signature (``Enforce``), and accepts it if the configuration only
warns (``Warn``).

Source: AWS Lambda API reference, the operations that the docstrings name; developer guide, "Code signing".
"""

from __future__ import annotations

import secrets
import string
from typing import Any

import msgspec

from thawd.control import paging
from thawd.control.function_records import Family, Parameters, now_text
from thawd.control.names import function_arn, parse_function
from thawd.control.registry import Registry, SigningConfig
from thawd.errors import (
    CodeSigningConfigNotFoundException,
    CodeVerificationFailedException,
    ResourceConflictException,
    ResourceNotFoundException,
)
from thawd.resources import ACCOUNT_ID, REGION

_PREFIX = f"arn:aws:lambda:{REGION}:{ACCOUNT_ID}:code-signing-config:"
_DIGITS = string.ascii_lowercase + string.digits
_ENFORCE, _WARN = "Enforce", "Warn"


class CodeSigning:
    """The operations on code signing configurations."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def create(self, parameters: Parameters) -> dict[str, Any]:
        """CreateCodeSigningConfig."""
        config = SigningConfig(
            identifier="csc-" + "".join(secrets.choice(_DIGITS) for _ in range(17)),
            publishers=parameters["AllowedPublishers"]["SigningProfileVersionArns"],
            policy=parameters.get("CodeSigningPolicies", {}).get("UntrustedArtifactOnDeployment", _WARN),
            description=parameters.get("Description", ""),
            modified=now_text(),
        )
        await self._registry.save_signing(config)
        return {"CodeSigningConfig": _document(config)}

    async def update(self, parameters: Parameters) -> dict[str, Any]:
        """UpdateCodeSigningConfig."""
        config = self._find(parameters)
        policies, publishers = parameters.get("CodeSigningPolicies", {}), parameters.get("AllowedPublishers", {})
        changed = msgspec.structs.replace(
            config,
            publishers=publishers.get("SigningProfileVersionArns", config.publishers),
            policy=policies.get("UntrustedArtifactOnDeployment", config.policy),
            description=parameters.get("Description", config.description),
            modified=now_text(),
        )
        await self._registry.save_signing(changed)
        return {"CodeSigningConfig": _document(changed)}

    def get(self, parameters: Parameters) -> dict[str, Any]:
        """GetCodeSigningConfig."""
        return {"CodeSigningConfig": _document(self._find(parameters))}

    async def delete(self, parameters: Parameters) -> None:
        """DeleteCodeSigningConfig."""
        config = self._find(parameters)
        if self._functions_of(config):
            raise ResourceConflictException(
                "Cannot delete the CodeSigningConfig because it is being used by one or more functions."
            )
        await self._registry.forget_signing(config)

    def list_all(self, parameters: Parameters) -> dict[str, Any]:
        """ListCodeSigningConfigs."""
        items = [(one.identifier, one) for one in self._registry.signing.values()]
        chosen, marker = paging.page(sorted(items, key=lambda item: item[0]), parameters)
        return paging.with_marker({"CodeSigningConfigs": [_document(one) for one in chosen]}, marker)

    def list_functions(self, parameters: Parameters) -> dict[str, Any]:
        """ListFunctionsByCodeSigningConfig."""
        names = self._functions_of(self._find(parameters))
        chosen, marker = paging.page([(name, name) for name in names], parameters)
        return paging.with_marker({"FunctionArns": [function_arn(name) for name in chosen]}, marker)

    async def put(self, parameters: Parameters) -> dict[str, Any]:
        """PutFunctionCodeSigningConfig."""
        arn = parameters["CodeSigningConfigArn"]
        check_signing(self._registry, arn)
        family = self._family(parameters)
        family.code_signing = arn
        await self._registry.save(family)
        return {"CodeSigningConfigArn": arn, "FunctionName": family.name}

    def get_of_function(self, parameters: Parameters) -> dict[str, Any]:
        """GetFunctionCodeSigningConfig; the answer is empty if the function has no configuration."""
        family = self._family(parameters)
        if not family.code_signing:
            return {}
        return {"CodeSigningConfigArn": family.code_signing, "FunctionName": family.name}

    async def delete_of_function(self, parameters: Parameters) -> None:
        """DeleteFunctionCodeSigningConfig."""
        family = self._family(parameters)
        if family.code_signing:
            family.code_signing = ""
            await self._registry.save(family)

    def _family(self, parameters: Parameters) -> Family:
        return self._registry.family(parse_function(parameters["FunctionName"]).name)

    def _functions_of(self, config: SigningConfig) -> list[str]:
        arn = _PREFIX + config.identifier
        return sorted(name for name, family in self._registry.families.items() if family.code_signing == arn)

    def _find(self, parameters: Parameters) -> SigningConfig:
        arn = parameters["CodeSigningConfigArn"]
        config = self._registry.signing.get(arn.removeprefix(_PREFIX))
        if config is None:
            raise ResourceNotFoundException(
                f"The Lambda code signing configuration {arn} can not be found.", is_typed=False
            )
        return config


def check_signing(registry: Registry, arn: str) -> SigningConfig:
    """The code signing configuration that a function is to have.

    Raises:
        CodeSigningConfigNotFoundException: there is no such configuration (404).
    """
    config = registry.signing.get(arn.removeprefix(_PREFIX))
    if config is None:
        raise CodeSigningConfigNotFoundException(
            "The code signing configuration cannot be found. Check that the provided configuration is not deleted: "
            f"{arn}."
        )
    return config


def check_code(registry: Registry, arn: str) -> None:
    """Refuse new code for a function with the code signing configuration `arn`, if it demands a signature.

    Raises:
        CodeSigningConfigNotFoundException: there is no such configuration (404).
        CodeVerificationFailedException: the configuration demands a signature (400).
    """
    if arn and check_signing(registry, arn).policy == _ENFORCE:
        raise CodeVerificationFailedException(
            "The code cannot be deployed: the function has a code signing configuration with the policy Enforce, and "
            "thawd cannot verify signatures. Set UntrustedArtifactOnDeployment to Warn, or remove the configuration "
            "from the function."
        )


def _document(config: SigningConfig) -> dict[str, Any]:
    return {
        "CodeSigningConfigId": config.identifier,
        "CodeSigningConfigArn": _PREFIX + config.identifier,
        "Description": config.description,
        "AllowedPublishers": {"SigningProfileVersionArns": config.publishers},
        "CodeSigningPolicies": {"UntrustedArtifactOnDeployment": config.policy},
        "LastModified": config.modified,
    }
