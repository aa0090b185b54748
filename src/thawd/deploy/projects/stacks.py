"""The stacks of a project, and the options with which a project is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thawd.errors import ThawdError
from thawd.resources import ACCOUNT_ID, REGION

# Source: ECR user guide, "Amazon ECR private registry".
REGISTRY = f"{ACCOUNT_ID}.dkr.ecr.{REGION}.amazonaws.com"


class ProjectError(ThawdError):
    """The project cannot be read, packaged or deployed (HTTP 500; no API answers with it)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectOptions:
    """The options that a user gives for a project.

    Attributes:
        parameters: values of the templates' parameters.
        stack: name of the stack. For a CDK app, only this stack and its dependencies are made. None: the project's own
            name, or all stacks of a CDK app.
        env: environment: a section of samconfig.toml, or the stage of serverless.yml. None: the default.
        variables: environment variables.
        layers: folders or zip files in place of layers of other accounts, by `foreign_layers.layer_key`.
    """

    parameters: Mapping[str, str] = field(default_factory=dict)
    stack: str | None = None
    env: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    layers: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AssetFile:
    """A file or folder that a template expects in a bucket.

    Attributes:
        path: the file or folder.
        is_zipped: whether it is packed into a zip file.
        bucket: name of the bucket.
        key: the object's key.
    """

    path: Path
    is_zipped: bool
    bucket: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageAsset:
    """A container image that a template expects in a repository.

    Attributes:
        folder: the folder that COPY takes files from.
        dockerfile: the Dockerfile.
        target: name of the stage to build; None: the last one.
        build_args: values of ARGs.
        repository: name of the repository, with its registry.
        tag: tag of the image; None: a part of the image's digest.
    """

    folder: Path
    dockerfile: Path
    repository: str
    tag: str | None = None
    target: str | None = None
    build_args: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodePackage:
    """The files of a code folder that are put into the function's package.

    Attributes:
        patterns: globs. For each file, the last matching glob decides. A glob that begins with ``!`` leaves it out.
        requirements: the requirements file in the folder; None: ``requirements.txt``.
        folder: path of the code folder, relative to the folder to which the patterns are relative.
    """

    patterns: tuple[str, ...] = ()
    requirements: str | None = None
    folder: str = ""


BuildImage = Callable[[ImageAsset], str]
"""Builds an image, gives it its name in the store, and returns the name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectStack:
    """A stack of a project.

    Attributes:
        name: the stack's name.
        document: its template.
        folder: the folder to which paths in the template are relative.
        parameters: values of its parameters.
        tags: the stack's tags.
        assets: the files that it expects in buckets.
        images: the images that it expects in repositories.
        packages: which files of functions' code folders are packaged, by logical id. Functions without an entry are
            packaged as a whole.
        file: the template's file; None: thawd has made the template.
    """

    name: str
    document: dict[str, Any]
    folder: Path
    parameters: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    assets: tuple[AssetFile, ...] = ()
    images: tuple[ImageAsset, ...] = ()
    packages: Mapping[str, CodePackage] = field(default_factory=dict)
    file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A project that has been read.

    Attributes:
        path: its file.
        stacks: its stacks, each after those that it needs.
        sources: the files that it was read from.
        notes: lines for the operator about missing parts, each once.
        bootstrap: names and values of SSM parameters that must exist.
    """

    path: Path
    stacks: tuple[ProjectStack, ...]
    sources: frozenset[Path]
    notes: tuple[str, ...] = ()
    bootstrap: Mapping[str, str] = field(default_factory=dict)
