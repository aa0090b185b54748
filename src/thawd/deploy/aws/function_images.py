"""The container images of functions that a deployment pushes: those that thawd.toml names, and those that it makes.

An image is made of a function whose packages fit into no zip file (`thawd.deploy.images.function_image`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from thawd.config import Settings
from thawd.deploy.aws.stack import DeploymentError
from thawd.deploy.aws.used_stores import Uses
from thawd.deploy.images.function_image import FunctionImageRequest, build_function
from thawd.deploy.packages.planning import FunctionPlan
from thawd.errors import ThawdError
from thawd.oci import documents, image_lookup
from thawd.oci.image_store import Images
from thawd.resources import Function

# Names of architectures: Go's, of images, by Lambda's.
_ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}


class FunctionImages:
    """Finds and makes images in the store of the data folder. All methods block, for minutes if packages are installed.

    Args:
        settings: the configuration.
        report: called with lines about steps that take long.

    Attributes:
        store: folder of the store.
    """

    def __init__(self, settings: Settings, report: Callable[[str], None]) -> None:
        self.store: Path = settings.server.data / "images"
        self._settings = settings
        self._report = report

    def named(self, function: Function) -> str:
        """Return the digest of the image that a function names.

        Raises:
            DeploymentError: there is no such image, or it is for another architecture.
        """
        assert function.image is not None
        where = f"functions.{function.name}.image"
        images = Images(self.store)
        try:
            with images.adding():
                digest = image_lookup.obtain(
                    images,
                    function.image,
                    folder=self._settings.path.parent,
                    environ=os.environ,
                    on_line=self._report,
                )
            found = images.image(digest).config.architecture
        except ThawdError as error:
            raise DeploymentError(f"{where}: {error.message}") from error
        wanted = self._settings.deployment.architecture
        if found != _ARCHITECTURES[wanted]:
            raise DeploymentError(
                f"{where}: {function.image} is for {found}, and the functions run on {wanted}; set architecture in "
                "[deploy.aws], or build the image on a machine of that architecture"
            )
        return digest

    def made(self, function: Function, plan: FunctionPlan, uses: Uses | None) -> str:
        """Make the image of a function whose packages fit into no zip file, and return its digest.

        Raises:
            DeploymentError: the image cannot be made here, or its code could not work in one.
        """
        where = f"functions.{function.name}"
        why = "; ".join(plan.why)
        if (uses or Uses()).has_stores:
            raise DeploymentError(
                f"{where}: it fits only into a container image, where thawd.bucket and thawd.table are missing on AWS: "
                f"{why}. Use boto3 in it, or fetch a part of the packages at init"
            )
        architecture = self._settings.deployment.architecture
        if documents.machine_architecture() != _ARCHITECTURES[architecture]:
            raise DeploymentError(
                f"{where}: it fits only into a container image ({why}), and images for {architecture} are made only on "
                "a machine of that architecture"
            )
        if plan.runtime is not None and plan.runtime.startswith("python"):
            function = msgspec.structs.replace(function, python=plan.runtime.removeprefix("python"), runtime=None)
        self._report(f"making a container image of {function.name}: {why}")
        request = FunctionImageRequest(
            function=function,
            folder=self._settings.path.parent,
            data=self._settings.server.data,
            not_code=list(self._settings.not_code()),
            environ=os.environ,
        )
        try:
            return build_function(Images(self.store), request, self._report)
        except ThawdError as error:
            raise DeploymentError(f"{where}: {error.message}") from error
