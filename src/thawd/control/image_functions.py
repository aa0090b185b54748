"""Functions whose code is a container image: their parameters in the Lambda API, and how the API shows them.

Source: AWS Lambda API reference, "CreateFunction", "UpdateFunctionCode", "ImageConfig", "FunctionCodeLocation".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from thawd.control.function_records import VersionRecord
from thawd.errors import InvalidParameterValueException
from thawd.resources import ImageConfig

_IN_IMAGE = ("Handler", "Runtime", "Layers")
_OF_PACKAGE = ("ZipFile", "S3Bucket", "S3Key", "S3ObjectVersion")
# The part of a reference that is not the repository's name: a tag, a digest or both.
_WHICH = re.compile(r"(:[\w][\w.-]*)?(@sha256:[0-9a-f]{64})?$")


def is_of_image(parameters: Mapping[str, Any]) -> bool:
    """Whether CreateFunction is to make a function with a container image.

    Raises:
        InvalidParameterValueException: the parameters are of both kinds of function (400).
    """
    code = parameters.get("Code", {})
    if parameters.get("PackageType") != "Image":
        if "ImageUri" in code:
            raise InvalidParameterValueException(
                "Please don't provide ImageUri when the intended function PackageType is Zip."
            )
        return False
    check_settings(parameters)
    if not code.get("ImageUri") or any(name in code for name in _OF_PACKAGE):
        raise InvalidParameterValueException("Please provide ImageUri when PackageType is Image.")
    return True


def check_settings(parameters: Mapping[str, Any]) -> None:
    """Refuse settings that are in the image.

    Raises:
        InvalidParameterValueException: there are such settings (400).
    """
    if any(parameters.get(name) for name in _IN_IMAGE):
        raise InvalidParameterValueException(
            "Please don't provide Handler or Runtime or Layer when the intended function PackageType is Image."
        )


def new_image_uri(record: VersionRecord, parameters: Mapping[str, Any]) -> str | None:
    """The image that UpdateFunctionCode sets; None: the function's code is a zip file.

    Raises:
        InvalidParameterValueException: the code is of the other kind than the function's (400).
    """
    uri: str | None = parameters.get("ImageUri")
    if not record.image_uri:
        if uri is not None:
            raise InvalidParameterValueException(
                "Please don't provide ImageUri when updating a function with packageType Zip."
            )
        return None
    if not uri or any(name in parameters for name in _OF_PACKAGE):
        raise InvalidParameterValueException("Please provide ImageUri when updating a function with packageType Image.")
    return uri


def image_fields(uri: str, digest: str) -> dict[str, Any]:
    """The fields of a record whose code is an image; `digest` is that of the image's manifest."""
    sha256 = digest.partition(":")[2]
    return {"image_uri": uri, "code_sha256": sha256, "code_size": 0, "package": sha256, "from_zip": False}


def image_config_of(parameters: Mapping[str, Any]) -> ImageConfig:
    """The parameter ``ImageConfig``; empty parts of it mean the image's own."""
    given = parameters.get("ImageConfig") or {}
    return ImageConfig(
        entry_point=tuple(given["EntryPoint"]) if given.get("EntryPoint") else None,
        command=tuple(given["Command"]) if given.get("Command") else None,
        working_directory=given.get("WorkingDirectory") or None,
    )


def code_location(record: VersionRecord) -> dict[str, Any]:
    """The field ``Code`` of GetFunction."""
    repository = _WHICH.sub("", record.image_uri)
    return {
        "RepositoryType": "ECR",
        "ImageUri": record.image_uri,
        "ResolvedImageUri": f"{repository}@sha256:{record.code_sha256}" if record.code_sha256 else record.image_uri,
    }
