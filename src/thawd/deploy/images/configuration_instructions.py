"""Carries out the instructions that change an image's configuration, and make no layer.

Source: https://docs.docker.com/reference/dockerfile/, each instruction by its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from thawd.deploy.images.dockerfile.parsing import Instruction
from thawd.deploy.images.dockerfile.substitution import SubstitutionError, pairs
from thawd.deploy.images.stage_state import StageState
from thawd.errors import ImageError


def configure(state: StageState, instruction: Instruction, value: Callable[[str], str], escape: str) -> bool:
    """Carry out an instruction.

    Args:
        state: the stage, which is changed.
        instruction: the instruction.
        value: substitutes the variables of a word.
        escape: the Dockerfile's escape character.

    Returns:
        False if the instruction is Docker's own, and OCI images have nothing for it.

    Raises:
        ImageError: the instruction is incomplete (HTTP 400).
    """
    keyword = instruction.keyword
    if keyword in _CONFIGURE:
        _CONFIGURE[keyword](state, instruction, value)
    elif keyword in ("ENV", "LABEL"):
        try:
            found = list(pairs(instruction.rest, escape))
        except SubstitutionError as error:
            raise ImageError(f"{keyword}: {error}") from None
        # All values of one instruction see the variables from before it.
        values = {value(name): value(text) for name, text in found}
        if keyword == "ENV":
            state.env |= values
        else:
            state.config = replace(state.config, labels={**(state.config.labels or {}), **values})
    else:
        return False
    state.step(keyword, sorted(state.env.items()), state.shell, state.config)
    return True


def _command_words(state: StageState, instruction: Instruction) -> list[str]:
    if instruction.words is not None:
        return list(instruction.words)
    return [*state.shell, instruction.rest] if instruction.rest else []


def _cmd(state: StageState, instruction: Instruction, value: Callable[[str], str]) -> None:
    state.has_cmd = True
    state.config = replace(state.config, cmd=_command_words(state, instruction))


def _entrypoint(state: StageState, instruction: Instruction, value: Callable[[str], str]) -> None:
    cmd = state.config.cmd if state.has_cmd else None
    state.config = replace(state.config, entrypoint=_command_words(state, instruction), cmd=cmd)


def _user(state: StageState, instruction: Instruction, value: Callable[[str], str]) -> None:
    state.config = replace(state.config, user=value(instruction.rest))


def _stop_signal(state: StageState, instruction: Instruction, value: Callable[[str], str]) -> None:
    state.config = replace(state.config, stop_signal=value(instruction.rest))


def _expose(state: StageState, instruction: Instruction, value: Callable[[str], str]) -> None:
    ports = [value(word) for word in instruction.rest.split()]
    named: dict[str, Any] = {port if "/" in port else f"{port}/tcp": {} for port in ports}
    state.config = replace(state.config, exposed_ports={**(state.config.exposed_ports or {}), **named})


def _volume(state: StageState, instruction: Instruction, value: Callable[[str], str]) -> None:
    words = instruction.words if instruction.words is not None else instruction.rest.split()
    volumes: dict[str, Any] = {value(word): {} for word in words}
    state.config = replace(state.config, volumes={**(state.config.volumes or {}), **volumes})


def _shell(state: StageState, instruction: Instruction, value: Callable[[str], str]) -> None:
    if not instruction.words:
        raise ImageError('SHELL needs the JSON form, such as SHELL ["/bin/bash", "-c"]')
    state.shell = instruction.words


def _maintainer(state: StageState, instruction: Instruction, value: Callable[[str], str]) -> None:
    state.config = replace(state.config, labels={**(state.config.labels or {}), "maintainer": instruction.rest})


_CONFIGURE = {
    "CMD": _cmd,
    "ENTRYPOINT": _entrypoint,
    "USER": _user,
    "STOPSIGNAL": _stop_signal,
    "EXPOSE": _expose,
    "VOLUME": _volume,
    "SHELL": _shell,
    "MAINTAINER": _maintainer,
}
