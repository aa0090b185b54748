"""Runs cfn-lint on the templates of a project, to find what AWS would refuse (the extra ``lint``).

cfn-lint knows the properties of AWS's types and the values that they allow.

Source: cfn-lint's documentation, "cfnlint.api", and its rules: those of the level E are errors.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from thawd.deploy.projects.stacks import Project
from thawd.resources import REGION


def lint_errors(project: Project) -> Iterator[str]:
    """A line for each error in the project's template files. Takes seconds.

    Templates that thawd makes, of serverless.yml, are not linted: the user has not written them.

    Raises:
        ModuleNotFoundError: cfn-lint is not installed.
    """
    for stack in project.stacks:
        if stack.file is not None:
            for found in _errors(stack.file):
                yield f"{os.path.relpath(stack.file)}:{found.linenumber}: {found.rule.id} {found.message}"


def _errors(file: Path) -> list[Any]:
    # Imported here, as it takes half a second and is not always installed.
    from cfnlint.api import ManualArgs, lint_file

    errors = [found for found in lint_file(file, ManualArgs(regions=[REGION])) if found.rule.id.startswith("E")]
    return sorted(errors, key=lambda found: (found.linenumber, found.rule.id))
