"""Checks a project without a server: finds its errors, and the resources that thawd does not have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from thawd.config import process_environment
from thawd.deploy.projects import artifacts
from thawd.deploy.projects.deployment import prepared
from thawd.deploy.projects.esbuild import Bundle
from thawd.deploy.projects.npm_packages import NpmPackages
from thawd.deploy.projects.stacks import ImageAsset, Project, ProjectError, ProjectStack

Missing = Callable[[str], str | None]
"""Returns what is missing because resources of a type are only recorded, or None. Raises ProjectError if a stack with
such a resource fails."""


@dataclass(slots=True)
class Findings:
    """The result of a check.

    Attributes:
        mistakes: what keeps a stack from being made, a line each.
        missing: a line for each resource or property that is left out.
        counts: number of resources by type.
    """

    mistakes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def check_project(project: Project, missing: Missing, layers: Mapping[str, Path]) -> Findings:
    """Check the stacks of a project: their templates, parameters, local code, and the types of their resources.

    Nothing is installed or bundled, and no code is run.

    Args:
        project: the project.
        missing: says what a type of resource lacks.
        layers: see `ProjectOptions.layers`.
    """
    findings = Findings(missing=list(project.notes))
    npm = _NoPackages(Path(), process_environment())
    tools = artifacts.BuildTools(_not_installed, _not_built, bundle=_not_bundled, npm=npm, layers=layers)
    for stack in project.stacks:
        try:
            types = _types_of(stack, tools, findings)
        except (ProjectError, OSError) as error:
            findings.mistakes.append(str(error))
            continue
        findings.counts.update(types.values())
        _check_types(stack.name, types, missing, findings)
    findings.missing = list(dict.fromkeys(findings.missing))
    return findings


def _types_of(stack: ProjectStack, tools: artifacts.BuildTools, findings: Findings) -> Mapping[str, str]:
    """The types of a stack's resources, by logical id."""
    gone = next((asset.path for asset in stack.assets if not asset.path.exists()), None)
    if gone is not None:
        raise ProjectError(f"there is no {gone}, which the cloud assembly names: run `cdk synth` again")
    packaged = artifacts.package(stack, tools)
    findings.missing += packaged.notes
    return {name: resource.type for name, resource in prepared(stack, packaged).resources.items()}


class _NoPackages(NpmPackages):
    """Knows whether there is an npm, and installs nothing."""

    def installed(self, source: Path) -> Path | None:
        """See `NpmPackages`."""
        return None


def _not_installed(requirements: Path, runtime: str, architecture: str | None) -> Path:
    return requirements.parent


def _not_built(image: ImageAsset) -> str:
    return f"{image.repository}:{image.tag or 'latest'}"


def _not_bundled(name: str, folder: Path, properties: object, program: str, environ: Mapping[str, str]) -> Bundle:
    return Bundle(b"", frozenset())


def _check_types(stack: str, types: Mapping[str, str], missing: Missing, findings: Findings) -> None:
    """Add a line for each type that thawd does not have."""
    for kind in sorted(set(types.values())):
        names = ", ".join(name for name, each in types.items() if each == kind)
        try:
            reason = missing(kind)
        except ProjectError as error:
            findings.mistakes.append(f"stack {stack}: {names}: {error}")
            continue
        if reason:
            findings.missing.append(f"{names} ({kind}): {reason}")
