"""Reads a project that is one template of SAM or CloudFormation, with the settings that SAM keeps in samconfig.toml.

Source: SAM developer guide, "AWS SAM CLI configuration file".
"""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

from thawd.deploy.projects.stacks import Project, ProjectError, ProjectOptions, ProjectStack
from thawd.deploy.templates.refusals import TemplateError
from thawd.deploy.templates.template_parsing import parse

_SETTINGS = "samconfig.toml"
_COMMANDS = ("global", "deploy")


def read_template(path: Path, options: ProjectOptions) -> Project:
    """Read a template.

    Raises:
        ProjectError: a file cannot be read, or is malformed.
    """
    document = parsed(path)
    settings_file = path.parent / _SETTINGS
    settings = _deploy_settings(settings_file, options.env) if settings_file.is_file() else {}
    if options.env is not None and not settings_file.is_file():
        raise ProjectError(f"--env {options.env} needs a {_SETTINGS} beside {path.name} with a section of that name")
    declared = document.get("Parameters")
    stored = _overrides(settings.get("parameter_overrides", {}))
    known = {name: text for name, text in stored.items() if isinstance(declared, dict) and name in declared}
    name = options.stack or settings.get("stack_name") or stack_name(path.parent.resolve().name)
    tags = _overrides(settings.get("tags", {}))
    stack = ProjectStack(
        name=str(name),
        document=document,
        folder=path.parent.resolve(),
        parameters={**known, **options.parameters},
        tags=tags,
        file=path,
    )
    return Project(path=path, stacks=(stack,), sources=frozenset({path, settings_file}))


def parsed(path: Path) -> dict[str, Any]:
    """Return a file's template.

    Raises:
        ProjectError: the file cannot be read, or is no template.
    """
    try:
        return parse(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise ProjectError(f"{path} cannot be read: {error}") from error
    except TemplateError as error:
        raise ProjectError(f"{path}: {error.message}") from error


def stack_name(text: str) -> str:
    """Make the name of a stack from a folder's name.

    Source: CloudFormation API reference, CreateStack: letters, digits and hyphens; the first is a letter.
    """
    name = re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")[:100]
    return name if re.match("[A-Za-z]", name) else f"app-{name}".rstrip("-")


def target_of(path: Path, env: str | None) -> tuple[str | None, str | None]:
    """Return the region and the profile that samconfig.toml beside a template names for deployments, or None for each.

    Raises:
        ProjectError: the file cannot be read, or has no section `env`.
    """
    file = path.parent / _SETTINGS
    settings = _deploy_settings(file, env) if file.is_file() else {}
    region, profile = settings.get("region"), settings.get("profile")
    return None if region is None else str(region), None if profile is None else str(profile)


def _deploy_settings(path: Path, env: str | None) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ProjectError(f"{path} cannot be read: {error}") from error
    section = document.get(env or "default")
    if section is None and env is not None:
        raise ProjectError(f"{path} has no section {env}; it has {', '.join(map(str, document))}")
    found: dict[str, Any] = {}
    for command in _COMMANDS:
        part = section.get(command) if isinstance(section, dict) else None
        parameters = part.get("parameters") if isinstance(part, dict) else None
        found |= parameters if isinstance(parameters, dict) else {}
    return found


def _overrides(given: Any) -> dict[str, str]:
    """``parameter_overrides``: a table, a list of ``Key=Value``, or a text with several of them."""
    if isinstance(given, dict):
        return {str(name): str(value) for name, value in given.items()}
    texts = shlex.split(given) if isinstance(given, str) else [str(each) for each in given or ()]
    return dict(text.partition("=")[::2] for text in texts if "=" in text)
