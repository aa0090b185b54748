"""Reads a project: chooses the reader for templates, cloud assemblies or serverless.yml."""

from __future__ import annotations

from pathlib import Path

from thawd.deploy.projects.discovery import MANIFEST, SERVERLESS
from thawd.deploy.projects.stacks import Project, ProjectOptions
from thawd.deploy.projects.template_files import read_template


def read_project(path: Path, options: ProjectOptions) -> Project:
    """Read a project.

    Args:
        path: its file, or the folder of a cloud assembly.
        options: the options that the user gave.

    Raises:
        ProjectError: the project cannot be read; the message says where and why.
    """
    if path.name in SERVERLESS:
        from thawd.deploy.projects.serverless_files import read_serverless

        return read_serverless(path, options)
    if path.name == MANIFEST or path.is_dir():
        from thawd.deploy.projects.assemblies import read_assembly

        return read_assembly(path if path.is_dir() else path.parent, options)
    return read_template(path, options)
