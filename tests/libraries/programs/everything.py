"""All libraries of the other programs in one process."""

from __future__ import annotations

from typing import Any

import arrays
import captions
import columns
import estimators
import frames
import kernels
import scenario
import secrets_kept
import sessions
import tokens
import training
import web


class Everything:
    """One instance of each program."""

    def __init__(self, options: scenario.Options) -> None:
        with_options = (
            arrays.Arrays,
            estimators.Estimators,
            columns.Columns,
            training.Training,
            captions.Captions,
            sessions.Sessions,
            kernels.Kernels,
        )
        self._parts: list[Any] = [make(options) for make in with_options]
        self._parts += [frames.Frames(), tokens.Tokens(), secrets_kept.SecretsKept(), web.Web()]

    def answer(self, number: int) -> Any:
        return {type(part).__name__: part.answer(number) for part in self._parts}

    def exercise(self) -> None:
        for part in self._parts:
            part.exercise()


if __name__ == "__main__":
    scenario.main(Everything)
