"""The transform AWS::Serverless-2016-10-31 (SAM), carried out by AWS's own library aws-sam-translator.

The translator accepts only code in S3. So each local path is replaced by an address in S3 before the translation.
Afterwards, the address is replaced by the path again: ``{"Code": "src/"}``.
"""

from __future__ import annotations

import copy
import json
import logging
import threading
from collections.abc import Mapping
from typing import Any

from thawd.deploy.templates.refusals import TemplateError

TRANSFORM = "AWS::Serverless-2016-10-31"

# The translator keeps the region and its metrics in global variables.
_ALONE = threading.Lock()
_LOCAL = "thawd-local-path"
# Properties of SAM's resources that name local files, with their counterparts in CloudFormation.
_PATHS = {
    "AWS::Serverless::Function": ("CodeUri",),
    "AWS::Serverless::LayerVersion": ("ContentUri",),
    "AWS::Serverless::Application": ("Location",),
    "AWS::Serverless::StateMachine": ("DefinitionUri",),
    "AWS::Serverless::Api": ("DefinitionUri",),
    "AWS::Serverless::HttpApi": ("DefinitionUri",),
}


def translate(document: Mapping[str, Any], parameters: Mapping[str, Any], region: str) -> dict[str, Any]:
    """Replace SAM's resources by those of CloudFormation.

    Args:
        document: the template. It stays as it is.
        parameters: the values of the parameters.
        region: name of the region.

    Raises:
        TemplateError: the translator refuses the template, or is not installed.
    """
    try:
        import boto3
        from samtranslator.model.exceptions import InvalidDocumentException
        from samtranslator.parser.parser import Parser
        from samtranslator.translator.translator import Translator
        from samtranslator.utils.py27hash_fix import to_py27_compatible_template, undo_mark_unicode_str_in_template
    except ModuleNotFoundError as error:
        raise TemplateError(f"Transform {TRANSFORM} needs {error.name}: pip install 'thawd[aws]'") from error

    # The translator measures its durations, and warns that no consumer for them is registered.
    logging.getLogger("samtranslator.metrics").setLevel(logging.ERROR)
    template = copy.deepcopy(dict(document))
    paths: list[str] = []
    _hide_paths(template, paths)
    values = dict(parameters)
    with _ALONE:
        try:
            session = boto3.Session(
                region_name=region,
                aws_access_key_id="unused",
                aws_secret_access_key="unused",
            )
            to_py27_compatible_template(template, values)
            translator = Translator(None, Parser(), boto_session=session)
            translated = translator.translate(template, parameter_values=values, passthrough_metadata=True)
            plain: dict[str, Any] = json.loads(json.dumps(undo_mark_unicode_str_in_template(translated)))
        except InvalidDocumentException as error:
            reasons = "; ".join(cause.message for cause in error.causes) or error.message
            raise TemplateError(
                f"Transform {TRANSFORM} failed with: Invalid Serverless Application Specification document. {reasons}"
            ) from error
    _show_paths(plain, paths)
    return plain


def _hide_paths(template: Mapping[str, Any], paths: list[str]) -> None:
    """Replace each local path by an address in S3. The paths are added to `paths`."""
    resources = template.get("Resources")
    globals_ = template.get("Globals")
    shared = globals_.get("Function") if isinstance(globals_, dict) else None
    for resource in resources.values() if isinstance(resources, dict) else ():
        if isinstance(resource, dict):
            _add_folder(resource, shared if isinstance(shared, dict) else {})
    _hide(shared, ("CodeUri",), paths)
    for resource in resources.values() if isinstance(resources, dict) else ():
        if isinstance(resource, dict):
            _hide(resource.get("Properties"), _PATHS.get(resource.get("Type", ""), ()), paths)


def _add_folder(resource: dict[str, Any], shared: Mapping[str, Any]) -> None:
    """Add the default location of a function's code, as ``sam build`` does: the template's folder."""
    properties = resource.setdefault("Properties", {})
    if resource.get("Type") != "AWS::Serverless::Function" or not isinstance(properties, dict):
        return
    given = {**shared, **properties}
    if given.get("PackageType", "Zip") == "Zip" and not given.keys() & {"CodeUri", "InlineCode"}:
        properties["CodeUri"] = "."


def _hide(properties: Any, names: tuple[str, ...], paths: list[str]) -> None:
    for name in names:
        path = properties.get(name) if isinstance(properties, dict) else None
        if isinstance(path, str) and not path.startswith(("s3://", "https://", "http://")):
            properties[name] = f"s3://{_LOCAL}/{len(paths)}"
            paths.append(path)


def _show_paths(value: Any, paths: list[str]) -> None:
    """Replace the addresses in the translated template by the local paths."""
    if isinstance(value, list):
        for each in value:
            _show_paths(each, paths)
    if not isinstance(value, dict):
        return
    for key, each in value.items():
        path = _path_at(each, paths)
        if path is None:
            _show_paths(each, paths)
        else:
            value[key] = path


def _path_at(value: Any, paths: list[str]) -> str | None:
    """Return the local path behind an address of a hidden path, in one of the forms that properties have."""
    if isinstance(value, str) and value.startswith(f"s3://{_LOCAL}/"):
        return paths[int(value.rpartition("/")[2])]
    if isinstance(value, dict):
        bucket = value.get("S3Bucket", value.get("Bucket"))
        if bucket == _LOCAL:
            return paths[int(value["S3Key"] if "S3Key" in value else value["Key"])]
    return None
