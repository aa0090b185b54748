"""Plans a build: the stages that a target needs, in the order in which they can be built.

Source: https://docs.docker.com/build/building/multi-stage/
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from thawd.deploy.images.dockerfile.parsing import Dockerfile, Instruction
from thawd.deploy.images.dockerfile.substitution import SubstitutionError, split_words, substitute
from thawd.errors import ImageError

SCRATCH = "scratch"
_STAGE_NAME = re.compile(r"[a-z][a-z0-9._-]*")
_KNOWN_FLAGS = {
    "FROM": {"platform"},
    "COPY": {"from", "chown", "chmod", "link", "parents", "exclude"},
    "ADD": {"chown", "chmod", "link", "keep-git-dir", "checksum", "unpack", "exclude"},
    "RUN": {"mount", "network", "security"},
    "HEALTHCHECK": {"interval", "timeout", "start-period", "start-interval", "retries"},
}
_INSTRUCTIONS = {
    *("FROM", "ARG", "ENV", "LABEL", "MAINTAINER", "EXPOSE", "USER", "WORKDIR", "VOLUME", "STOPSIGNAL", "SHELL"),
    *("CMD", "ENTRYPOINT", "HEALTHCHECK", "COPY", "ADD", "RUN"),
}
_OTHER_BUILDER = "build the image with Docker, buildah or another builder, and name its file as `docker-archive:FILE`"


@dataclass(slots=True)
class Stage:
    """A stage of a build.

    Attributes:
        index: its number, from 0.
        name: the name after AS; None: it has none.
        base: number of the stage that it begins with, or the name of an image.
        platform: the flag ``--platform``, such as ``linux/amd64``; None: not given.
        line: line of its FROM.
        instructions: what follows.
    """

    index: int
    name: str | None
    base: int | str
    platform: str | None
    line: int
    instructions: list[Instruction] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Plan:
    """The stages to build.

    Attributes:
        stages: the stages that the target needs; each one after those that it needs itself. The last is the target.
        global_args: ARGs before the first FROM, with their values.
        names: numbers of the stages by their names and numbers.
    """

    stages: list[Stage]
    global_args: dict[str, str]
    names: dict[str, int]


def plan(
    file: Dockerfile, *, target: str | None, build_args: Mapping[str, str], platform_args: Mapping[str, str]
) -> Plan:
    """Plan a build.

    Args:
        file: the Dockerfile.
        target: name or number of a stage; None: the last one.
        build_args: values for ARGs, from the command line.
        platform_args: Docker's predefined ARGs, such as ``TARGETARCH``.

    Raises:
        ImageError: an instruction is unknown or not supported, or there is no such stage; the message says what to do.
    """
    _check(file)
    args: dict[str, str] = {}
    stages: list[Stage] = []
    names: dict[str, int] = {}
    for instruction in file.instructions:
        if instruction.keyword == "FROM":
            stage = _stage(file, instruction, len(stages), {**platform_args, **args}, names)
            stages.append(stage)
            names[str(stage.index)] = stage.index
            if stage.name:
                names[stage.name] = stage.index
        elif stages:
            stages[-1].instructions.append(instruction)
        elif instruction.keyword == "ARG":
            args |= declared_args(file, instruction, build_args, {**platform_args, **args}, {})
        else:
            raise file.error(instruction.line, f"{instruction.keyword} before the first FROM; only ARG may stand there")
    if not stages:
        raise ImageError(f"{file.path} has no FROM; begin it with the image to build upon, or FROM scratch")
    wanted = len(stages) - 1 if target is None else names.get(target.lower())
    if wanted is None:
        known = ", ".join(stage.name for stage in stages if stage.name) or "none has a name"
        raise ImageError(f"{file.path} has no stage {target!r}; its stages: {known}")
    return Plan([stages[index] for index in _needed(stages, names, wanted)], args, names)


def declared_args(
    file: Dockerfile,
    instruction: Instruction,
    build_args: Mapping[str, str],
    variables: Mapping[str, str],
    inherited: Mapping[str, str],
) -> dict[str, str]:
    """Return the ARGs that an instruction declares and that have a value.

    Args:
        file: the Dockerfile.
        instruction: the ARG.
        build_args: values from the command line, which have precedence.
        variables: variables for defaults.
        inherited: ARGs before the first FROM, and predefined ones: the value of an ARG that has no other.
    """
    declared: dict[str, str] = {}
    for word in split_words(instruction.rest, file.escape):
        name, equals, default = word.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise file.error(instruction.line, f"{name!r} is not the name of an ARG")
        if name in build_args:
            declared[name] = build_args[name]
        elif equals:
            declared[name] = evaluated(file, instruction, default, {**variables, **declared})
        elif name in inherited:
            declared[name] = inherited[name]
    return declared


def evaluated(file: Dockerfile, instruction: Instruction, word: str, variables: Mapping[str, str]) -> str:
    """Substitute the variables of a word. Raises ImageError with the line if that is not possible."""
    try:
        return substitute(word, variables, file.escape)
    except SubstitutionError as error:
        raise file.error(instruction.line, str(error)) from None


def stage_of(text: str, names: Mapping[str, int], below: int) -> int | None:
    """Return the number of the stage that a FROM or ``--from`` names; None: it names an image.

    Args:
        text: name or number.
        names: stages by name and number.
        below: number of the stage with the instruction; only earlier ones are meant.
    """
    found = names.get(text.lower())
    return found if found is not None and found < below else None


def _check(file: Dockerfile) -> None:
    for instruction in file.instructions:
        if instruction.keyword == "ONBUILD":
            raise file.error(instruction.line, f"ONBUILD is not supported: {_OTHER_BUILDER}")
        if instruction.keyword not in _INSTRUCTIONS:
            raise file.error(instruction.line, f"{instruction.keyword} is not an instruction of a Dockerfile")
        for flag, value in instruction.flags:
            if flag not in _KNOWN_FLAGS.get(instruction.keyword, ()):
                raise file.error(instruction.line, f"{instruction.keyword} has no flag --{flag}")
            _check_flag(file, instruction, flag, value)


def _check_flag(file: Dockerfile, instruction: Instruction, flag: str, value: str) -> None:
    unsupported = flag in ("parents", "exclude", "keep-git-dir", "checksum", "unpack", "security")
    if flag == "network":
        unsupported = value not in ("default", "host")
    if flag == "mount":
        unsupported = re.search(r"(?:^|,)type=(?!bind\b|cache\b|tmpfs\b)", value) is not None
    if unsupported:
        raise file.error(
            instruction.line,
            f"{instruction.keyword} --{flag}={value} is not supported: leave it out, or {_OTHER_BUILDER}",
        )


def _stage(
    file: Dockerfile, instruction: Instruction, index: int, variables: Mapping[str, str], names: Mapping[str, int]
) -> Stage:
    words = [evaluated(file, instruction, word, variables) for word in split_words(instruction.rest, file.escape)]
    if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS") or not words[0]:
        raise file.error(instruction.line, f"FROM {instruction.rest} is not of the form FROM IMAGE [AS NAME]")
    name = words[2].lower() if len(words) == 3 else None
    if name is not None and not _STAGE_NAME.fullmatch(name):
        raise file.error(instruction.line, f"{words[2]!r} is not the name of a stage")
    platform = None
    for flag, value in instruction.flags:
        platform = evaluated(file, instruction, value, variables) if flag == "platform" else platform
    own = stage_of(words[0], names, index) if not words[0].isdecimal() else None
    return Stage(index, name, words[0] if own is None else own, platform, instruction.line)


def _needed(stages: list[Stage], names: Mapping[str, int], target: int) -> list[int]:
    """Return the numbers of the stages that a stage needs, and its own. Stages refer to earlier ones only."""
    needed = {target}
    for index in range(target, -1, -1):
        if index not in needed:
            continue
        stage = stages[index]
        if isinstance(stage.base, int):
            needed.add(stage.base)
        for instruction in stage.instructions:
            for flag, value in instruction.flags:
                # Docker substitutes no variables in --from either.
                named = (
                    [value] if flag == "from" else re.findall(r"(?:^|,)from=([^,]+)", value) if flag == "mount" else []
                )
                needed |= {found for text in named if (found := stage_of(text, names, index)) is not None}
    return sorted(needed)
