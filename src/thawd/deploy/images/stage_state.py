"""The state of a stage during a build: its layers, configuration, variables, and the key of the last step.

A step's key is a digest of the key before it, the instruction and its inputs. A build whose keys are those of an
earlier one takes the earlier layers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from thawd.oci import documents
from thawd.oci.documents import Descriptor, History, ImageConfig, Manifest, ProcessConfig, RootFilesystem
from thawd.oci.image_store import Image, Images
from thawd.oci.layer_writing import Layer

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CREATED = "1980-01-01T00:00:00Z"


@dataclass(slots=True)
class StageState:
    """A stage while its instructions are carried out.

    Attributes:
        layers: the layers, the lowest first.
        key: key of the last step.
        env: environment variables of the image.
        args: ARGs that are declared in this stage.
        shell: program and arguments for shell forms.
        config: the rest of the configuration; its ``env`` is not used.
        history: what made the layers.
        has_cmd: whether CMD was set in this stage: an ENTRYPOINT removes one that was inherited.
    """

    layers: list[Layer] = field(default_factory=list)
    key: str = "scratch"
    env: dict[str, str] = field(default_factory=dict)
    args: dict[str, str] = field(default_factory=dict)
    shell: tuple[str, ...] = ("/bin/sh", "-c")
    config: ProcessConfig = field(default_factory=ProcessConfig)
    history: list[History] = field(default_factory=list)
    has_cmd: bool = False

    @property
    def variables(self) -> dict[str, str]:
        """Variables for substitution: an ENV has precedence over an ARG of its name."""
        return {**self.args, **self.env}

    @property
    def layer_digests(self) -> list[tuple[str, str]]:
        """Digests of each layer's blob and of its uncompressed tar file."""
        return [(layer.blob.digest, layer.diff_id) for layer in self.layers]

    def step(self, *parts: object) -> str:
        """Take a step: the new key depends on the one before and on `parts`."""
        text = "\0".join([self.key, *map(str, parts)])
        self.key = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()
        return self.key

    def add(self, layer: Layer | None, made_by: str) -> None:
        """Add a layer, or only a line of history."""
        if layer is not None:
            self.layers.append(layer)
        self.history.append(History(_CREATED, made_by, empty_layer=layer is None))

    def copy(self) -> StageState:
        """Return the state of a stage that begins with this one."""
        return replace(
            self,
            layers=list(self.layers),
            env=dict(self.env),
            args={},
            history=list(self.history),
            shell=("/bin/sh", "-c"),
            has_cmd=False,
        )


def from_image(image: Image) -> StageState:
    """Return the state of a stage that begins with an image of the store."""
    config = image.config.config or ProcessConfig()
    pairs = (pair.partition("=") for pair in config.env or [])
    layers = zip(image.manifest.layers, image.config.rootfs.diff_ids, strict=True)
    history = list(image.config.history or [])
    if sum(not each.empty_layer for each in history) != len(image.manifest.layers):
        # The history of some images is incomplete. Each layer needs its line.
        history = [History(_CREATED, "FROM an image without history") for _ in image.manifest.layers]
    return StageState(
        layers=[Layer(blob, diff_id) for blob, diff_id in layers],
        key=f"image {image.digest}",
        env={name: value for name, _, value in pairs},
        config=config,
        history=history,
    )


def store(images: Images, state: StageState, *, architecture: str, labels: Mapping[str, str] | None = None) -> str:
    """Store an image with a stage's layers and configuration.

    Args:
        images: the store.
        state: the stage.
        architecture: architecture of the image in Go's names.
        labels: further labels.

    Returns:
        Digest of the manifest; the same for the same state.
    """
    config = documents.ProcessConfig(
        user=state.config.user,
        exposed_ports=state.config.exposed_ports,
        env=[f"{name}={value}" for name, value in state.env.items()],
        entrypoint=state.config.entrypoint,
        cmd=state.config.cmd,
        volumes=state.config.volumes,
        working_dir=state.config.working_dir,
        labels={**(state.config.labels or {}), **(labels or {})} or None,
        stop_signal=state.config.stop_signal,
    )
    content = documents.encode(
        ImageConfig(
            architecture=architecture,
            os="linux",
            config=config,
            rootfs=RootFilesystem([layer.diff_id for layer in state.layers]),
            created=_CREATED,
            history=state.history,
        )
    )
    blob = Descriptor(documents.CONFIG, images.blobs.add(content), len(content))
    layers = [_as_oci(layer.blob) for layer in state.layers]
    return images.blobs.add(documents.encode(Manifest(2, blob, layers, documents.MANIFEST)))


def _as_oci(blob: Descriptor) -> Descriptor:
    """Return the descriptor with OCI's media type: a manifest must not mix Docker's types with its own."""
    kinds = {"": documents.LAYER_TAR, ".gzip": documents.LAYER_GZIP, ".zstd": f"{documents.LAYER_TAR}+zstd"}
    prefix = "application/vnd.docker.image.rootfs.diff.tar"
    kind = blob.media_type
    if kind.startswith(prefix):
        kind = kinds.get(kind.removeprefix(prefix), kind)
    return Descriptor(kind, blob.digest, blob.size)
