"""Runs the walk-through of docs/how-to/lambda-api.md unchanged, with the AWS CLI and a new server."""

from __future__ import annotations

import sys

from tests import consoles

from .conftest import Project

PAGE = consoles.DOCS / "how-to" / "lambda-api.md"


def test_every_command_prints_what_the_page_shows(project: Project) -> None:
    project.config('limits = "machine"\n')
    runtime = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    with project.up() as running:
        consoles.run(
            PAGE,
            project.root,
            told=lambda command: command.replace("http://127.0.0.1:8350", running.url).replace("python3.11", runtime),
        )


def test_the_page_has_all_that_it_is_for() -> None:
    commands = " ".join(consoles.commands(PAGE))
    for needed in ("create-function ", "invoke", "publish-version", "create-alias", "concurrency", "url", "aws logs"):
        assert needed in commands
