"""Packages a project of another tool for AWS: a template of SAM or CloudFormation with its local code and images.

Code is packaged as for `thawd up` (`thawd.deploy.projects.artifacts`), but requirements are installed from wheels for
Lambda, and images get names in the account's registry.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from thawd.config import process_environment
from thawd.deploy.aws import naming
from thawd.deploy.aws.account import AwsSession
from thawd.deploy.aws.artifact_bucket import ArtifactBucket
from thawd.deploy.packages import wheels
from thawd.deploy.packages.targets import ARCHITECTURES, Target, python_version
from thawd.deploy.projects import artifacts
from thawd.deploy.projects.artifacts import ArtifactPlace, BuildTools
from thawd.deploy.projects.npm_packages import NpmPackages
from thawd.deploy.projects.project_images import ProjectImages
from thawd.deploy.projects.stacks import ImageAsset, ProjectError, ProjectStack
from thawd.oci import documents
from thawd.oci.image_store import Images

_MACHINES = {"x86_64": "amd64", "arm64": "arm64"}
_CODE = ".zip"


class ProjectPackage(msgspec.Struct, frozen=True, kw_only=True):
    """A project's template for AWS, and what it refers to.

    Attributes:
        text: the template.
        documents: nested templates and other files that CloudFormation reads when it makes a change set, by key.
        code: archives of code, by key.
        images: digests of container images.
        image_store: folder of the store that has them.
        notes: lines for the user.
    """

    text: str
    documents: Mapping[str, bytes]
    code: Mapping[str, bytes]
    images: tuple[str, ...]
    image_store: Path
    notes: tuple[str, ...]


def package_project(
    session: AwsSession, stack: ProjectStack, *, data: Path, report: Callable[[str], None]
) -> ProjectPackage:
    """Package a project's stack. Blocks, for minutes if packages are downloaded or images are built.

    Args:
        session: the account and region.
        stack: the stack of the project.
        data: data folder, where images are built.
        report: called with lines about steps that take long.

    Raises:
        ThawdError: code cannot be packaged, or an image cannot be built.
    """
    bucket = ArtifactBucket(session)
    images = _Images(session, stack.name, bucket.owner, data, report)
    with _installer(report) as packages:
        tools = BuildTools(packages, images.build, npm=NpmPackages(data / "environments", process_environment()))
        place = ArtifactPlace(bucket.name, bucket.url("").removesuffix(f"/{bucket.name}/"), compresses=True)
        made = artifacts.package(stack, tools, place)
    _check_architectures(made.document, images.digests)
    return ProjectPackage(
        text=json.dumps(made.document, ensure_ascii=False),
        documents={key: content for key, content in made.objects.items() if not key.endswith(_CODE)},
        code={key: content for key, content in made.objects.items() if key.endswith(_CODE)},
        images=tuple(images.digests.values()),
        image_store=images.store,
        notes=tuple(made.notes),
    )


@contextmanager
def _installer(report: Callable[[str], None]) -> Iterator[artifacts.Packages]:
    """Yield a function that installs requirements for Lambda. Its folders exist inside the ``with`` block."""
    with tempfile.TemporaryDirectory(prefix="thawd-deploy-") as root, Path(root, "lock").open("w") as lock:
        installed: dict[tuple[Path, Target], Path] = {}

        def install(requirements: Path, runtime: str, architecture: str | None) -> Path:
            if architecture not in ARCHITECTURES:
                raise ProjectError(
                    f"{requirements} cannot be installed: the template computes the function's Architectures; write "
                    "x86_64 or arm64, or name a parameter"
                )
            target = Target(python=python_version(runtime), architecture=architecture)
            if (requirements, target) not in installed:
                report(f"installing {requirements} for {target}")
                folder = Path(root, f"packages-{len(installed)}")
                environ = wheels.installer_environment()
                wheels.install(requirements, target, folder, lock=lock.fileno(), environ=environ)
                (folder / ".lock").unlink(missing_ok=True)  # uv's
                installed[requirements, target] = folder
            return installed[requirements, target]

        yield install


class _Images:
    """Builds the images of a project, and gives them names in the account's registry.

    Attributes:
        store: folder of the store.
        digests: digests by the names that the template has.
    """

    def __init__(
        self, session: AwsSession, stack: str, account_id: str, data: Path, report: Callable[[str], None]
    ) -> None:
        self.store: Path = data / "images"
        self.digests: dict[str, str] = {}
        self._builder = ProjectImages(data, say=report)
        self._place = f"{account_id}.dkr.ecr.{session.region}.{session.dns_suffix}/{naming.repository_name(stack)}"

    def build(self, image: ImageAsset) -> str:
        """Build an image; see `ProjectImages.build`."""
        local_name = self._builder.build(image)
        digest = Images(self.store).names()[local_name]
        name = f"{self._place}@{digest}"
        self.digests[name] = digest
        return name


def _check_architectures(document: Mapping[str, Any], built: Mapping[str, str]) -> None:
    """Raise `ProjectError` if a function would run on another architecture than the image that was built here."""
    here = documents.machine_architecture()
    sections = document.get("Globals")
    shared = sections.get("Function", {}) if isinstance(sections, dict) else {}
    for name, resource in document.get("Resources", {}).items():
        properties = resource.get("Properties") if isinstance(resource, dict) else None
        if not isinstance(properties, dict):
            continue
        code = properties.get("Code", properties)
        if not (isinstance(code, dict) and code.get("ImageUri") in built):
            continue
        wanted = properties.get("Architectures", shared.get("Architectures", ["x86_64"]))
        if not (isinstance(wanted, list) and wanted and _MACHINES.get(str(wanted[0])) == here):
            raise ProjectError(
                f"{name} has the Architectures {json.dumps(wanted)}, and its image was built for {here}; deploy it "
                "from a machine of its architecture, or name a finished image by ImageUri"
            )


def parameters_of(stack: ProjectStack, deployed: Mapping[str, Any] | None) -> dict[str, str | None]:
    """Return the values of parameters for a change set: those that were given; None for those that the stack has.

    Args:
        stack: the project's stack.
        deployed: the deployed stack as CloudFormation describes it; None: there is none.

    Raises:
        ProjectError: the template has no such parameter.
    """
    section = stack.document.get("Parameters")
    declared = section if isinstance(section, dict) else {}
    unknown = [name for name in stack.parameters if name not in declared]
    if unknown:
        raise ProjectError(f"--parameters: the template has no parameter {unknown[0]}; it has {', '.join(declared)}")
    had = {each["ParameterKey"] for each in (deployed or {}).get("Parameters", ())}
    return {name: stack.parameters.get(name) for name in declared if name in stack.parameters or name in had}
