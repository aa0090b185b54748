"""Packages the local code of a template, as ``sam build`` and ``aws cloudformation package`` do, without Docker.

A path in a template becomes the address of an object in a bucket. An object is named by its content, so that code that
did not change is neither stored again nor published again.

Source: AWS CLI reference, "aws cloudformation package"; SAM developer guide, "sam build".
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thawd.config import process_environment
from thawd.deploy.projects import esbuild
from thawd.deploy.projects.foreign_layers import ForeignLayers
from thawd.deploy.projects.npm_packages import NpmPackages
from thawd.deploy.projects.stacks import REGISTRY, BuildImage, CodePackage, ImageAsset, ProjectError, ProjectStack
from thawd.deploy.projects.template_files import parsed
from thawd.deploy.projects.zip_files import Source, archive
from thawd.deploy.templates.includes import MACRO
from thawd.publishing.requirement_files import is_empty

BUCKET = "thawd-artifacts"

_ZIPPED = {
    "AWS::Serverless::Function": "CodeUri",
    "AWS::Lambda::Function": "Code",
    "AWS::Serverless::LayerVersion": "ContentUri",
    "AWS::Lambda::LayerVersion": "Content",
}
_TEMPLATES = {"AWS::Serverless::Application": "Location", "AWS::CloudFormation::Stack": "TemplateURL"}
_FILES = {
    "AWS::Serverless::StateMachine": "DefinitionUri",
    "AWS::StepFunctions::StateMachine": "DefinitionS3Location",
    "AWS::Serverless::Api": "DefinitionUri",
    "AWS::Serverless::HttpApi": "DefinitionUri",
    "AWS::ApiGateway::RestApi": "BodyS3Location",
    "AWS::ApiGatewayV2::Api": "BodyS3Location",
}
_FUNCTIONS = ("AWS::Serverless::Function", "AWS::Lambda::Function")
_LAYERS = ("AWS::Serverless::LayerVersion", "AWS::Lambda::LayerVersion")
# Builders of SAM that thawd does not run. The output of `sam build` is used instead.
_BUILT_BY_SAM = ".aws-sam/build"

Packages = Callable[[Path, str, str | None], Path]
"""Returns the folder of the packages of a requirements file, for a runtime such as ``python3.12`` and an architecture;
None: the template computes the architecture."""


@dataclass(frozen=True, slots=True)
class ArtifactPlace:
    """Where the packaged code will be.

    Attributes:
        bucket: name of the bucket.
        url: URL of the region's S3 service, for nested templates.
        compresses: whether zip files are compressed. A server on this machine has them sooner if they are not.
    """

    bucket: str = BUCKET
    url: str = "https://s3.us-east-1.amazonaws.com"
    compresses: bool = False


def _nothing(content: bytes) -> None:
    """Take a zip file that nobody waits for."""


@dataclass(frozen=True, slots=True)
class BuildTools:
    """What code is built with.

    Attributes:
        packages: installs requirements.
        build_image: builds an image from a Dockerfile.
        bundle: bundles the code of a Node function.
        npm: installs the packages of Node functions; None: they are named as missing.
        layers: folders or zip files in place of layers of other accounts, by `foreign_layers.layer_key`.
        take_zip: called with each zip file of code as soon as it is made.
    """

    packages: Packages
    build_image: BuildImage
    bundle: esbuild.Bundler = field(default=esbuild.bundle, kw_only=True)
    npm: NpmPackages | None = field(default=None, kw_only=True)
    layers: Mapping[str, Path] = field(default_factory=dict, kw_only=True)
    take_zip: Callable[[bytes], object] = field(default=_nothing, kw_only=True)


@dataclass(slots=True)
class Packaged:
    """A template whose local code is packaged.

    Attributes:
        document: the template, with addresses in the bucket.
        objects: content of the objects, by key.
        sources: folders and files that the objects were made of.
        images: names of the images.
        notes: lines for the operator.
        archives: the zip files made so far, by their sources: several functions may have the same code.
    """

    document: dict[str, Any]
    objects: dict[str, bytes] = field(default_factory=dict)
    archives: dict[tuple[Source, ...], bytes] = field(default_factory=dict)
    sources: set[Path] = field(default_factory=set)
    images: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


def package(stack: ProjectStack, tools: BuildTools, place: ArtifactPlace = ArtifactPlace()) -> Packaged:
    """Package the local code of a stack's template, and of the templates that are nested in it. Blocks.

    Args:
        stack: the stack. It stays as it is.
        tools: the tools that build the code.
        place: where the code will be; by default, in the bucket of a running server.

    Raises:
        ImageError: an image cannot be built.
        ProjectError: a path does not exist, or code has to be built by a tool that thawd does not run.
        EnvironmentBuildError: requirements cannot be installed.
    """
    packaged = Packaged(copy.deepcopy(stack.document))
    for image in stack.images:
        packaged.sources.add(_checked(image).folder)
        packaged.images.add(tools.build_image(image))
    packaging = _Packaging(stack.folder, packaged, tools, place, prefix=f"{stack.name}/")
    packaging.code_packages = stack.packages
    packaging.parameters = stack.parameters
    packaging.template(packaged.document)
    return packaged


class _Packaging:
    """Packages one template, and those nested in it.

    Args:
        folder: the folder to which its relative paths are relative.
        packaged: the result, to which objects, sources and notes are added.
        tools: the tools that build the code.
        place: where the code will be.
        prefix: the beginning of the objects' keys.

    Attributes:
        code_packages: how the code of functions is packaged, by logical id.
        parameters: values of the template's parameters that were given.
    """

    def __init__(
        self, folder: Path, packaged: Packaged, tools: BuildTools, place: ArtifactPlace, *, prefix: str
    ) -> None:
        self._folder, self._packaged, self._tools, self._prefix = folder, packaged, tools, prefix
        self._place = place
        self._layers = ForeignLayers(
            tools.layers,
            lambda content: {"S3Bucket": place.bucket, "S3Key": self._add(content, ".zip")},
            self._archive,
        )
        self.code_packages: Mapping[str, CodePackage] = {}
        self.parameters: Mapping[str, str] = {}
        self._declared: Mapping[str, Any] = {}

    def template(self, document: dict[str, Any]) -> None:
        declared = document.get("Parameters")
        self._declared = declared if isinstance(declared, dict) else {}
        sections = document.get("Globals")
        globals_ = sections.get("Function", {}) if isinstance(sections, dict) else {}
        for name, resource in _resources(document.get("Resources")):
            kind, properties = resource.get("Type"), resource.setdefault("Properties", {})
            if not isinstance(properties, dict):
                continue
            if kind in _FUNCTIONS and "Layers" in properties:
                properties["Layers"] = self._layers.replaced(name, properties["Layers"])
            if kind in _ZIPPED:
                self._code(name, resource, _ZIPPED[kind], globals_ if kind == _FUNCTIONS[0] else {})
            elif kind in _TEMPLATES:
                self._nested(properties, _TEMPLATES[kind])
            elif kind in _FILES:
                self._file(properties, _FILES[kind])
        if isinstance(globals_, dict):
            globals_.pop("CodeUri", None)  # each function has its own now
            if "Layers" in globals_:
                globals_["Layers"] = self._layers.replaced("Globals", globals_["Layers"])
        if self._layers.resources:
            document["Resources"].update(self._layers.resources)
        self._packaged.sources |= self._layers.sources
        self._packaged.notes += self._layers.notes
        self._includes(document)

    def _includes(self, value: Any) -> None:
        """Package the snippets that the macro AWS::Include puts into a template."""
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            if isinstance(each, dict) and each.get("Name") == MACRO and isinstance(each.get("Parameters"), dict):
                self._file(each["Parameters"], "Location")
            self._includes(each)

    def _code(self, name: str, resource: dict[str, Any], attribute: str, globals_: Mapping[str, Any]) -> None:
        """Package a function or a layer."""
        properties = resource["Properties"]
        both = {**globals_, **properties}
        given = _unbundled(resource, self._folder) or both.get(attribute)
        if both.get("PackageType") == "Image":
            self._image(name, resource, attribute)
            return
        if "InlineCode" in both:
            return
        if given is None and resource["Type"] in ("AWS::Serverless::Function",):
            given = "."
        if not isinstance(given, str) or _is_address(given):
            if given is not None and attribute not in properties:
                properties[attribute] = given
            return
        path = self._path(given, name)
        content = self._built(name, resource, path, both)
        key = self._add(content, ".zip")
        simple = attribute in ("CodeUri", "ContentUri")
        properties[attribute] = self._address(key) if simple else {"S3Bucket": self._place.bucket, "S3Key": key}

    def _image(self, name: str, resource: dict[str, Any], attribute: str) -> None:
        """Build the image of a function whose metadata name a Dockerfile, as ``sam build`` does.

        Source: SAM developer guide, "Building Lambda functions with container images".
        """
        properties, metadata = resource["Properties"], resource.get("Metadata")
        code = properties if attribute == "CodeUri" else properties.setdefault("Code", {})
        if not isinstance(metadata, dict) or "Dockerfile" not in metadata or not isinstance(code, dict):
            return
        if not isinstance(code.get("ImageUri", ""), str):
            return
        context = self._path(str(metadata.get("DockerContext", ".")), name)
        arguments = metadata.get("DockerBuildArgs")
        image = ImageAsset(
            folder=context,
            dockerfile=context / str(metadata["Dockerfile"]),
            target=metadata.get("DockerBuildTarget"),
            build_args={key: str(value) for key, value in arguments.items()} if isinstance(arguments, dict) else {},
            repository=f"{REGISTRY}/{self._prefix}{name}".lower(),
        )
        self._packaged.sources.add(_checked(image).folder)
        code["ImageUri"] = self._tools.build_image(image)
        self._packaged.images.add(code["ImageUri"])

    def _built(self, name: str, resource: dict[str, Any], path: Path, both: Mapping[str, Any]) -> bytes:
        metadata = resource["Metadata"] if isinstance(resource.get("Metadata"), dict) else {}
        method = None if metadata.get("SkipBuild") is True else metadata.get("BuildMethod")
        if path.is_file():
            self._packaged.sources.add(path)
            return path.read_bytes() if path.suffix in (".zip", ".jar") else self._archive([Source(path, path.name)])
        if method == esbuild.METHOD and (program := esbuild.find_esbuild(path, process_environment())) is not None:
            bundle = self._tools.bundle(name, path, metadata.get("BuildProperties"), program, process_environment())
            self._packaged.sources |= {path, *bundle.inputs}
            return bundle.content
        if isinstance(method, str) and not method.startswith(("python", "nodejs")):
            path = self._built_by_sam(name, method)
        self._packaged.sources.add(path)
        is_layer = resource["Type"] in _LAYERS
        runtime = self._text(method if is_layer else both.get("Runtime"))
        package = self.code_packages.get(name, CodePackage())
        prefix = next((each for each in ("python", "nodejs") if is_layer and str(method).startswith(each)), "")
        sources = [Source(path, prefix, package.patterns, package.folder)]
        requirements = path / (package.requirements or "requirements.txt")
        has_requirements = requirements.is_file() and not is_empty(requirements)
        if has_requirements and runtime is not None and runtime.startswith("python"):
            found = self._tools.packages(requirements, runtime, self._architecture(both, metadata))
            sources.insert(0, Source(found, "python" if is_layer else ""))
        elif has_requirements and runtime is None and not is_layer:
            self._packaged.notes.append(f"{name}: {requirements} is not installed: the template computes its Runtime")
        elif (path / "package.json").is_file() and not (path / "node_modules").is_dir():
            sources = [*self._node_packages(name, path, prefix), *sources]
        return self._archive(sources)

    def _archive(self, sources: Sequence[Source]) -> bytes:
        key = tuple(sources)
        if key not in self._packaged.archives:
            self._packaged.archives[key] = archive(sources, compresses=self._place.compresses)
        return self._packaged.archives[key]

    def _architecture(self, properties: Mapping[str, Any], metadata: Mapping[str, Any]) -> str | None:
        """The architecture of a function or layer in Lambda's words; None: the template computes it.

        Source: Lambda API reference, CreateFunction: x86_64 is the default. SAM developer guide, "BuildArchitecture".
        """
        names = properties.get("Architectures", properties.get("CompatibleArchitectures"))
        given = metadata.get("BuildArchitecture", names[0] if isinstance(names, list) and names else names)
        return "x86_64" if given is None else self._text(given) or None

    def _text(self, value: Any) -> str | None:
        """The text that a property has, if it is written or is that of a parameter; None: it is something else."""
        if isinstance(value, dict) and value.keys() == {"Ref"}:
            name = value["Ref"]
            declared = self._declared.get(name)
            value = self.parameters.get(name, declared.get("Default") if isinstance(declared, dict) else None)
        return value if isinstance(value, str) else None

    def _node_packages(self, name: str, path: Path, prefix: str) -> list[Source]:
        """The packages that a code folder's package.json requires."""
        npm = self._tools.npm
        if npm is None or not npm.has_npm:
            why = "" if npm is None else ": there is no npm"
            self._packaged.notes.append(
                f"{name}: {path / 'package.json'} is not installed{why}; if it has dependencies, run `npm install`"
            )
            return []
        found = npm.installed(path)
        return [] if found is None else [Source(found, f"{prefix}/node_modules" if prefix else "node_modules")]

    def _built_by_sam(self, name: str, method: str) -> Path:
        built = self._folder / _BUILT_BY_SAM / name
        if not built.is_dir():
            if method == esbuild.METHOD:
                reason = "esbuild, which is not on this machine: install it (`npm install --global esbuild`)"
            else:
                reason = f"{method}, which thawd does not run: run `sam build`"
            raise ProjectError(f"{name} is built by {reason}; thawd also uses the output of `sam build` in {built}")
        return built

    def _nested(self, properties: dict[str, Any], attribute: str) -> None:
        given = properties.get(attribute)
        if not isinstance(given, str) or _is_address(given):
            return
        path = self._path(given, attribute)
        document = parsed(path)
        self._packaged.sources.add(path)
        nested = _Packaging(path.parent, self._packaged, self._tools, self._place, prefix=self._prefix)
        parameters = properties.get("Parameters")
        if isinstance(parameters, dict):
            # A value that is not known here is no default of the nested template either.
            nested.parameters = {name: self._text(value) or "" for name, value in parameters.items()}
        nested.template(document)
        key = self._add(json.dumps(document).encode(), ".template")
        properties[attribute] = f"{self._place.url}/{self._place.bucket}/{key}"

    def _file(self, properties: dict[str, Any], attribute: str) -> None:
        given = properties.get(attribute)
        if not isinstance(given, str) or _is_address(given):
            return
        path = self._path(given, attribute)
        self._packaged.sources.add(path)
        key = self._add(path.read_bytes(), path.suffix)
        simple = attribute in ("DefinitionUri", "Location")
        properties[attribute] = self._address(key) if simple else {"Bucket": self._place.bucket, "Key": key}

    def _address(self, key: str) -> str:
        return f"s3://{self._place.bucket}/{key}"

    def _path(self, given: str, name: str) -> Path:
        path = (self._folder / given).resolve()
        if not path.exists():
            raise ProjectError(f"{name}: there is no {path}; the template says {given!r}")
        return path

    def _add(self, content: bytes, suffix: str) -> str:
        key = f"{self._prefix}{hashlib.sha256(content).hexdigest()}{suffix}"
        if suffix == ".zip" and key not in self._packaged.objects:
            self._tools.take_zip(content)
        self._packaged.objects[key] = content
        return key


def _checked(image: ImageAsset) -> ImageAsset:
    if not image.dockerfile.is_file():
        raise ProjectError(f"there is no {image.dockerfile}, which the image {image.repository} is built from")
    return image


def _resources(section: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The resources of a template, and those in its loops (``Fn::ForEach``)."""
    for name, part in section.items() if isinstance(section, dict) else ():
        if isinstance(part, dict):
            yield name, part
        elif isinstance(part, list) and len(part) == 3:
            yield from _resources(part[2])


def _unbundled(resource: dict[str, Any], folder: Path) -> str | None:
    """Return the folder of a CDK asset whose requirements must be installed; None: the asset is complete.

    Source: SAM developer guide, "How AWS SAM builds AWS CDK applications".
    """
    metadata = resource.get("Metadata")
    if not isinstance(metadata, dict) or metadata.get("aws:asset:is-bundled") is not False:
        return None
    path = metadata.get("aws:asset:path")
    return path if isinstance(path, str) and (folder / path / "requirements.txt").is_file() else None


def _is_address(text: str) -> bool:
    return text.startswith(("s3://", "https://", "http://"))
