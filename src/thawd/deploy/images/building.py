"""Builds an image from a Dockerfile, without Docker and without privileges.

The instructions are carried out in order. Each makes a layer or changes the configuration. A layer is taken from an
earlier build if the instruction, all instructions before it and their inputs are unchanged (`layer_instructions`). A
build that is killed leaves its finished layers, and the next build uses them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from thawd.deploy.images import lambda_base
from thawd.deploy.images.configuration_instructions import configure
from thawd.deploy.images.dockerfile.parsing import Dockerfile, Instruction, parse
from thawd.deploy.images.dockerfile.planning import SCRATCH, Plan, Stage, declared_args, evaluated, plan
from thawd.deploy.images.layer_instructions import StepContext, Steps
from thawd.deploy.images.stage_state import StageState, from_image, store
from thawd.errors import ImageError, RegistryError
from thawd.oci import documents, image_lookup, references
from thawd.oci.image_store import Images
from thawd.publishing.interpreters import find_interpreter

_FROM_A_FILE = (
    "Without this registry: save the image where it is (`docker save -o FILE`), and write FROM docker-archive:FILE"
)


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """A build: its Dockerfile, folder and options.

    Attributes:
        context: the folder that COPY takes files from.
        dockerfile: the Dockerfile.
        target: name of the stage; None: the last one.
        build_args: values of ARGs.
        environ: environment variables, for credentials, proxies and pip.
        environments: folder for virtual environments, which Lambda's base images are made from.
        use_cache: whether layers of earlier builds are taken.
        labels: further labels.
        not_copied: paths that COPY always leaves out, for example the data folder.
    """

    context: Path
    dockerfile: Path
    target: str | None = None
    build_args: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    environments: Path = Path(".thawd/environments")
    use_cache: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    not_copied: tuple[Path, ...] = ()


def build(images: Images, request: BuildRequest, on_line: Callable[[str], None]) -> str:
    """Build an image, and return the digest of its manifest. Blocks.

    Args:
        images: the store for the image and its layers.
        request: what to build.
        on_line: called with each line of progress and of the commands' output.

    Raises:
        ImageError: the Dockerfile is wrong, uses what thawd does not support, or a command failed; with the line of the
            Dockerfile (HTTP 400).
        OSError: the disk failed or is full.
    """
    if not request.context.is_dir():
        raise ImageError(f"{request.context} is not a folder")
    try:
        text = request.dockerfile.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ImageError(f"{request.dockerfile} does not exist; name another with --file") from None
    except (UnicodeDecodeError, IsADirectoryError):
        raise ImageError(f"{request.dockerfile} is not a text in UTF-8") from None
    file = parse(text, request.dockerfile)
    architecture = documents.machine_architecture()
    planned = plan(
        file, target=request.target, build_args=request.build_args, platform_args=_platform_args(architecture)
    )
    with images.adding():
        building = _Building(images, request, file, planned, on_line)
        for stage in planned.stages:
            building.stage(stage)
        return store(
            images, building.states[planned.stages[-1].index], architecture=architecture, labels=request.labels
        )


class _Building:
    """One build.

    Args:
        images: the store.
        request: what to build.
        file: the Dockerfile.
        planned: the stages to build.
        on_line: called with each line of progress.
    """

    def __init__(
        self,
        images: Images,
        request: BuildRequest,
        file: Dockerfile,
        planned: Plan,
        on_line: Callable[[str], None],
    ) -> None:
        self.states: dict[int, StageState] = {}
        self._images = images
        self._request = request
        self._file = file
        self._plan = planned
        self._on_line = on_line
        self._steps = Steps(StepContext(images, request.context, file, request.use_cache, on_line, request.not_copied))
        self._predefined = _platform_args(documents.machine_architecture())

    def stage(self, stage: Stage) -> None:
        """Build a stage; those that it needs have been built."""
        self._check_platform(stage)
        state = self.states[stage.base].copy() if isinstance(stage.base, int) else self._base(stage, stage.base)
        self.states[stage.index] = state
        for instruction in stage.instructions:
            self._on_line(f"line {instruction.line}: {_short(instruction)}")
            try:
                self._carry_out(stage, state, instruction)
            except ImageError as error:
                if str(self._file.path) in str(error):
                    raise
                raise self._file.error(instruction.line, str(error)) from None

    def _base(self, stage: Stage, name: str) -> StageState:
        if name == SCRATCH:
            return StageState()
        self._on_line(f"line {stage.line}: FROM {name}")
        try:
            return from_image(self._images.image(self._image(name)))
        except RegistryError as error:
            raise self._file.error(stage.line, f"FROM {name}: {error}. {_FROM_A_FILE}") from None
        except ImageError as error:
            raise self._file.error(stage.line, f"FROM {name}: {error}") from None

    def _image(self, name: str) -> str:
        """Return the digest of an image that FROM or ``--from`` names."""
        version = lambda_base.version_of(name)
        if version is not None and str(references.parse(name)) not in self._images.names():
            return lambda_base.make(
                self._images,
                find_interpreter(version, environ=self._request.environ),
                environments=self._request.environments,
                environ=self._request.environ,
                on_line=self._on_line,
            )
        found = image_lookup.obtain(
            self._images, name, folder=self._request.context, environ=self._request.environ, on_line=self._on_line
        )
        documents.check_platform(self._images.image(found).config, documents.machine_architecture(), name)
        return found

    def _check_platform(self, stage: Stage) -> None:
        own = f"linux/{documents.machine_architecture()}"
        if stage.platform is not None and not f"{stage.platform}/".startswith(f"{own}/"):
            raise self._file.error(
                stage.line,
                f"--platform={stage.platform}, and this machine is {own}; thawd builds for the machine it runs on",
            )

    def _carry_out(self, stage: Stage, state: StageState, instruction: Instruction) -> None:
        keyword = instruction.keyword
        if keyword == "ARG":
            inherited = {**self._predefined, **self._plan.global_args}
            state.args |= declared_args(self._file, instruction, self._request.build_args, state.variables, inherited)
        elif keyword == "COPY":
            named = dict(instruction.flags).get("from")
            self._steps.copy(state, instruction, None if named is None else self._named_root(stage, named))
        elif keyword == "ADD":
            self._steps.add(state, instruction)
        elif keyword == "RUN":
            self._steps.run(state, instruction, lambda named: self._named_root(stage, named))
        elif keyword == "WORKDIR":
            path = self._value(state, instruction, instruction.rest)
            path = os.path.normpath(os.path.join(state.config.working_dir or "/", path))  # noqa: PTH118 - in the image
            state.config = replace(state.config, working_dir=path)
            self._steps.folder(state, path)
        else:
            if not configure(state, instruction, lambda word: self._value(state, instruction, word), self._file.escape):
                self._on_line(
                    f"line {instruction.line}: {keyword} is Docker's own, and no part of OCI images; left out"
                )
            state.add(None, _short(instruction))

    def _named_root(self, stage: Stage, named: str) -> Path:
        """Return the root of the stage or image that a ``--from`` names."""
        index = self._plan.names.get(named.lower())
        if index is not None and index < stage.index:
            return self._images.tree(self.states[index].layer_digests, f"the stage {named}", on_line=self._on_line)
        digest = self._image(named)
        return self._images.root(digest, on_line=self._on_line).folder

    def _value(self, state: StageState, instruction: Instruction, word: str) -> str:
        return evaluated(self._file, instruction, word, state.variables)


def _platform_args(architecture: str) -> dict[str, str]:
    own = f"linux/{architecture}"
    names = {"PLATFORM": own, "OS": "linux", "ARCH": architecture, "VARIANT": ""}
    return {f"{kind}{name}": value for kind in ("TARGET", "BUILD") for name, value in names.items()}


def _short(instruction: Instruction) -> str:
    flags = "".join(f"--{name}={value} " for name, value in instruction.flags)
    return f"{instruction.keyword} {flags}{instruction.rest}".split("\n")[0][:200]
