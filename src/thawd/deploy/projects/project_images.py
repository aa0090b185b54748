"""Builds the container images that a project's functions run in, and keeps them in the server's store of images."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from thawd.config import process_environment
from thawd.deploy.images.building import BuildRequest, build
from thawd.deploy.projects.stacks import REGISTRY, ImageAsset
from thawd.oci import references
from thawd.oci.image_store import Images


class ProjectImages:
    """Builds images into a server's store. All methods block.

    Args:
        data: the server's data folder.
        say: prints a line of progress.
    """

    def __init__(self, data: Path, *, say: Callable[[str], None]) -> None:
        self._data, self._say = data, say
        self._images = Images(data / "images")

    def build(self, image: ImageAsset) -> str:
        """Build an image, unless the store has one of its repository and tag, and return its name.

        Without a tag, the image gets one that is made of its digest, so that another image has another name.

        Raises:
            ImageError: the Dockerfile is wrong, uses what thawd does not support, or a command failed (HTTP 400).
            OSError: the disk failed or is full.
        """
        if image.tag is not None:
            name = str(references.parse(f"{image.repository}:{image.tag}"))
            stored = self._images.names().get(name)
            if stored is not None and self._images.blobs.has(stored):
                return name
        request = BuildRequest(
            context=image.folder,
            dockerfile=image.dockerfile,
            target=image.target,
            build_args=image.build_args,
            environ=process_environment(),
            environments=self._data / "environments",
            not_copied=(self._data.resolve(),),
        )
        with self._images.adding():
            digest = build(self._images, request, self._say_step)
            tag = image.tag or digest.partition(":")[2][:16]
            name = str(references.parse(f"{image.repository}:{tag}"))
            self._images.set_name(name, digest)
        return name

    def forget_others(self, stack: str, names: Collection[str]) -> None:
        """Remove the names of images that earlier deployments of a stack built. Images that versions use are kept."""
        if not self._images.folder.is_dir():
            return
        prefix = f"{REGISTRY}/{stack}/".lower()
        for name in self._images.names():
            if name.startswith(prefix) and name not in names:
                self._images.remove_name(name)

    def _say_step(self, line: str) -> None:
        self._say(f"  image     {line}")
