"""Which files of a service go into the packages of its functions: the section ``package``, and plugins that package.

Source: Serverless Framework documentation, "Packaging", version 3; README of serverless-python-requirements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from thawd.deploy.projects.stacks import CodePackage, ProjectError

_REQUIREMENTS_PLUGIN, _REQUIREMENTS_SETTINGS = "serverless-python-requirements", "pythonRequirements"
_REQUIREMENTS_LAYER = "PythonRequirementsLambdaLayer"
# Settings of serverless-python-requirements that thawd carries out or does not need.
_SETTINGS_DONE = {
    "fileName", "slim", "slimPatterns", "slimPatternsAppendDefaults", "strip", "noDeploy", "dockerizePip",
    "dockerImage", "dockerFile", "dockerSsh", "dockerPrivateKey", "dockerRunCmdExtraArgs", "dockerBuildCmdExtraArgs",
    "pythonBin",
    "useStaticCache", "useDownloadCache", "cacheLocation", "staticCacheMaxVersions", "invalidateCaches",
}  # fmt: skip
_BUNDLERS = {
    "serverless-esbuild", "serverless-webpack", "serverless-bundle", "serverless-plugin-typescript",
    "serverless-plugin-optimize", "serverless-jetpack", "serverless-rust", "serverless-go-plugin", "serverless-dotnet",
}  # fmt: skip
# Plugins whose work thawd does.
_REPLACED = {
    "serverless-offline": "thawd serves the service",
    "serverless-localstack": "thawd emulates AWS's services",
    "serverless-dynamodb-local": "thawd emulates DynamoDB",
    "serverless-dynamodb": "thawd emulates DynamoDB",
    "serverless-s3-local": "thawd emulates S3",
    "serverless-offline-sqs": "thawd emulates SQS",
    "serverless-offline-sns": "thawd emulates SNS",
    "serverless-offline-ssm": "thawd emulates SSM",
    "serverless-offline-dynamodb-streams": "thawd emulates DynamoDB",
}
# Plugins that do not change what runs here.
_WITHOUT_EFFECT = {"serverless-dotenv-plugin", "serverless-prune-plugin", "serverless-deployment-bucket"}


def plugins(document: Mapping[str, Any]) -> list[str]:
    """Return the names of a service's plugins."""
    section = document.get("plugins") or ()
    named = section.get("modules") or () if isinstance(section, dict) else section
    return [each for each in named if isinstance(each, str)] if isinstance(named, list) else []


def plugin_notes(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each plugin that is not run, and for each of its settings that has no effect."""
    custom = document.get("custom")
    settings = custom if isinstance(custom, dict) else {}
    for plugin in plugins(document):
        if plugin == _REQUIREMENTS_PLUGIN:
            yield from _requirements_notes(settings.get(_REQUIREMENTS_SETTINGS))
        elif plugin in _REPLACED:
            if settings.get(plugin):
                yield f"custom.{plugin} has no effect: {_REPLACED[plugin]}, with its own options"
        elif plugin in _BUNDLERS:
            yield (
                f"the plugin {plugin} is not run, and the functions are packaged as they lie there: bundle them "
                "yourself, and name the folder or zip file in package.artifact"
            )
        elif plugin not in _WITHOUT_EFFECT:
            yield f"the plugin {plugin} is not run"


def _requirements_notes(settings: Any) -> Iterator[str]:
    where = f"custom.{_REQUIREMENTS_SETTINGS}"
    for name, value in settings.items() if isinstance(settings, dict) else ():
        if name in _SETTINGS_DONE or value is False:
            continue
        reason = {
            "layer": "the packages go into each function's package",
            "zip": "the packages are not compressed within the package",
            "vendor": "put the folder into the package",
            "usePoetry": "thawd installs requirements.txt: run `poetry export`",
            "usePipenv": "thawd installs requirements.txt: run `pipenv requirements`",
            "useUv": "thawd installs requirements.txt: run `uv export`",
        }.get(name, "thawd installs the requirements itself")
        yield f"{where}.{name} has no effect: {reason}"


def requirements_file(document: Mapping[str, Any]) -> str | None:
    """Return the requirements file in the settings of serverless-python-requirements; None: ``requirements.txt``."""
    custom = document.get("custom")
    settings = custom.get(_REQUIREMENTS_SETTINGS) if isinstance(custom, dict) else None
    name = settings.get("fileName") if isinstance(settings, dict) else None
    return str(name) if _REQUIREMENTS_PLUGIN in plugins(document) and name else None


def without_requirements_layer(layers: Sequence[Any]) -> list[Any]:
    """Return a function's layers without that of serverless-python-requirements, which thawd puts into packages."""
    return [each for each in layers if each != {"Ref": _REQUIREMENTS_LAYER}]


def package_of(document: Mapping[str, Any], section: Mapping[str, Any], *, requirements: str | None) -> CodePackage:
    """Return which files go into a function's package.

    Args:
        document: the service.
        section: ``package`` of the function. Its patterns count only if the function is packaged individually.
        requirements: the requirements file; None: ``requirements.txt``.

    Raises:
        ProjectError: a pattern is malformed, or leads out of the service's folder.
    """
    shared = document.get("package") or {}
    own = section if section.get("individually") or shared.get("individually") else {}
    excluded = ["!" + text for part in (shared, own) for text in _patterns(part, "exclude")]
    included = [
        *(text for part in (shared, own) for text in _patterns(part, "patterns")),
        *(text for part in (shared, own) for text in _patterns(part, "include")),
    ]
    # Source: "Packaging": what Serverless leaves out by itself.
    environment = ["!.env*"] if document.get("useDotenv") is True else []
    by_default = ["!serverless.yml", "!serverless.yaml", "!.gitignore", "!npm-debug.log", "!.serverless_plugins/**"]
    patterns = (*by_default, *environment, *(text.replace("!!", "", 1) for text in excluded), *included)
    return CodePackage(patterns=patterns, requirements=requirements)


def _patterns(section: Mapping[str, Any], name: str) -> list[str]:
    found = section.get(name) or []
    if not isinstance(found, list) or not all(isinstance(each, str) and each.strip("!") for each in found):
        raise ProjectError(f"serverless.yml: package.{name} must be a list of patterns")
    for each in found:
        if each.startswith(("/", "!/")) or ".." in each.removeprefix("!").split("/"):
            raise ProjectError(
                f"serverless.yml: package.{name}: {each} leads out of the service's folder, and thawd packages only "
                "what is in it"
            )
    return [each.replace("./", "", 1) if each.startswith(("./", "!./")) else each for each in found]
