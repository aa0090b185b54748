"""Reads cloud assemblies: what ``cdk synth`` writes into ``cdk.out``.

Source: CDK's schema of cloud assemblies (aws-cdk-lib/cloud-assembly-schema), versions 2 and later of CDK.
"""

from __future__ import annotations

import graphlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from thawd.deploy.projects.discovery import MANIFEST
from thawd.deploy.projects.stacks import (
    REGISTRY,
    AssetFile,
    ImageAsset,
    Project,
    ProjectError,
    ProjectOptions,
    ProjectStack,
)
from thawd.deploy.projects.template_files import parsed
from thawd.resources import ACCOUNT_ID, REGION

_PLACES = {"${AWS::AccountId}": ACCOUNT_ID, "${AWS::Region}": REGION, "${AWS::Partition}": "aws"}
# The value that `cdk bootstrap` would have stored. Source: CDK's bootstrap template, version 21.
_BOOTSTRAP_VERSION = "21"
_BOOTSTRAP_TYPE = "AWS::SSM::Parameter::Value<String>"


@dataclass(frozen=True, slots=True)
class _Found:
    """A stack in an assembly.

    Attributes:
        names: the names by which a user may call it.
        needs: artifacts that it depends on.
        template: its template's file.
        stack: the stack.
    """

    names: frozenset[str]
    needs: frozenset[str]
    template: Path
    stack: ProjectStack


def read_assembly(folder: Path, options: ProjectOptions) -> Project:
    """Read a cloud assembly, with the assemblies of its stages.

    Args:
        folder: the assembly, usually ``cdk.out``.
        options: if `stack` is given, only that stack and its dependencies are read. A parameter named ``Stack:Name``
            is set in that stack only.

    Raises:
        ProjectError: a file is missing or malformed, there is no stack of that name, or no stack has a parameter.
    """
    if options.env is not None:
        raise ProjectError("--env: a CDK app has no environments; synthesise it with the context that you want")
    found = dict(_stacks(folder))
    if not found:
        raise ProjectError(f"{folder / MANIFEST} has no stack: run `cdk synth`")
    wanted = _wanted(found, options.stack)
    order = graphlib.TopologicalSorter({name: found[name].needs & wanted for name in found if name in wanted})
    chosen = [found[name] for name in order.static_order()]
    given = dict(options.parameters)
    stacks = tuple(_with_parameters(each.stack, given) for each in chosen)
    unknown = [name for name in given if not any(_declares(each.stack, name) for each in chosen)]
    if unknown:
        raise ProjectError(f"--parameters: no stack has a parameter {unknown[0]}")
    bootstrap = {name: _BOOTSTRAP_VERSION for each in chosen for name in _bootstrap_parameters(each.stack.document)}
    return Project(
        path=folder / MANIFEST,
        stacks=stacks,
        sources=frozenset({folder / MANIFEST, *(each.template for each in chosen)}),
        bootstrap=bootstrap,
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ProjectError(f"{path} cannot be read: {error}; run `cdk synth`") from error
    if not isinstance(document, dict):
        raise ProjectError(f"{path} is no JSON object; run `cdk synth`")
    return document


def _stacks(folder: Path) -> Iterator[tuple[str, _Found]]:
    """Yield the stacks of an assembly and of those within it, by the names of their artifacts."""
    artifacts = _read(folder / MANIFEST).get("artifacts", {})
    for name, artifact in artifacts.items():
        properties = artifact.get("properties", {})
        if artifact.get("type") == "cdk:cloud-assembly":
            yield from _stacks(folder / properties["directoryName"])
        elif artifact.get("type") == "aws:cloudformation:stack":
            yield name, _stack(folder, name, artifact, artifacts)


def _stack(folder: Path, name: str, artifact: Mapping[str, Any], artifacts: Mapping[str, Any]) -> _Found:
    properties = artifact.get("properties", {})
    template = folder / properties["templateFile"]
    needs = artifact.get("dependencies", ())
    assets: list[AssetFile] = []
    images: list[ImageAsset] = []
    for need in needs:
        other = artifacts.get(need, {})
        if other.get("type") == "cdk:asset-manifest":
            manifest = _read(folder / other["properties"]["file"])
            assets += _assets(folder, manifest)
            images += _images(folder, manifest)
    stack = ProjectStack(
        name=str(properties.get("stackName", name)),
        document=parsed(template),
        folder=folder.resolve(),
        parameters={key: str(value) for key, value in properties.get("parameters", {}).items()},
        tags={key: str(value) for key, value in properties.get("tags", {}).items()},
        assets=tuple(assets),
        images=tuple(images),
        file=template,
    )
    names = frozenset({name, stack.name, str(artifact.get("displayName", name))})
    return _Found(names, frozenset(needs), template, stack)


def _assets(folder: Path, manifest: Mapping[str, Any]) -> Iterator[AssetFile]:
    for identifier, asset in manifest.get("files", {}).items():
        source = asset.get("source", {})
        if "path" not in source:
            program = source.get("executable")
            raise ProjectError(f"the asset {identifier[:12]} is made by a program, {program}, which thawd does not run")
        for destination in asset.get("destinations", {}).values():
            yield AssetFile(
                (folder / source["path"]).resolve(),
                source.get("packaging", "file") == "zip",
                _placed(destination["bucketName"]),
                _placed(destination["objectKey"]),
            )


def _images(folder: Path, manifest: Mapping[str, Any]) -> Iterator[ImageAsset]:
    for identifier, asset in manifest.get("dockerImages", {}).items():
        source = asset.get("source", {})
        if "directory" not in source:
            program = source.get("executable")
            raise ProjectError(f"the image {identifier[:12]} is made by a program, {program}, which thawd does not run")
        context = (folder / source["directory"]).resolve()
        for destination in asset.get("destinations", {}).values():
            yield ImageAsset(
                folder=context,
                dockerfile=context / source.get("dockerFile", "Dockerfile"),
                target=source.get("dockerBuildTarget"),
                build_args={name: str(value) for name, value in source.get("dockerBuildArgs", {}).items()},
                repository=f"{REGISTRY}/{_placed(destination['repositoryName'])}",
                tag=_placed(destination["imageTag"]),
            )


def _placed(text: str) -> str:
    for placeholder, value in _PLACES.items():
        text = text.replace(placeholder, value)
    return text


def _wanted(found: Mapping[str, _Found], name: str | None) -> set[str]:
    """Return the stack of a name and those that it depends on; without a name, all."""
    if name is None:
        return set(found)
    waiting = [artifact for artifact, each in found.items() if name in each.names]
    if not waiting:
        raise ProjectError(
            f"--stack: there is no {name}; there are {', '.join(each.stack.name for each in found.values())}"
        )
    wanted: set[str] = set()
    while waiting:
        artifact = waiting.pop()
        if artifact in found and artifact not in wanted:
            wanted.add(artifact)
            waiting += found[artifact].needs
    return wanted


def _with_parameters(stack: ProjectStack, given: Mapping[str, str]) -> ProjectStack:
    own = {name.rpartition(":")[2]: text for name, text in given.items() if _declares(stack, name)}
    return replace(stack, parameters={**stack.parameters, **own})


def _declares(stack: ProjectStack, name: str) -> bool:
    """Return whether a stack has the parameter ``Name``, or ``Stack:Name``."""
    owner, _, parameter = name.rpartition(":")
    declared = stack.document.get("Parameters")
    return isinstance(declared, dict) and parameter in declared and owner in ("", stack.name)


def _bootstrap_parameters(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the SSM parameters by which a template checks that its account has been bootstrapped."""
    declared = document.get("Parameters")
    parameter = declared.get("BootstrapVersion") if isinstance(declared, dict) else None
    if isinstance(parameter, dict) and parameter.get("Type") == _BOOTSTRAP_TYPE and "Default" in parameter:
        yield str(parameter["Default"])
