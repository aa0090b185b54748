"""Finds the project in a folder. Imports nothing heavy: every command that reads a configuration asks here."""

from __future__ import annotations

from pathlib import Path

TEMPLATES = ("template.yaml", "template.yml", "template.json")
SERVERLESS = ("serverless.yml", "serverless.yaml")
ASSEMBLY = "cdk.out"
MANIFEST = "manifest.json"
# In this order: a folder may have several of them.
_FILES = (*TEMPLATES, *SERVERLESS, f"{ASSEMBLY}/{MANIFEST}")


def find_project(folder: Path) -> Path | None:
    """Return the project's file in a folder: a template, serverless.yml, or the manifest in ``cdk.out``, in this order.

    Returns:
        None if the folder has none of them.
    """
    return next((folder / name for name in _FILES if (folder / name).is_file()), None)


def is_project(path: Path) -> bool:
    """Return whether a path names a project, and not a configuration of thawd's own.

    ``cdk.out``, each other folder with a manifest, and files in YAML or JSON are projects.
    """
    return path.suffix.lower() in (".yaml", ".yml", ".json", ".template") or (path / MANIFEST).is_file()
