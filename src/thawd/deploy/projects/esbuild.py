"""Bundles Node functions with esbuild, as ``sam build`` does for ``BuildMethod: esbuild``.

It runs the esbuild of a ``node_modules`` folder in the code's folder or above it, else that on the PATH. Packages that
the code imports must be installed in such a folder, too. It writes only to a temporary folder.

Source: SAM developer guide, "Building Node.js Lambda functions with esbuild in AWS SAM"; esbuild's documentation,
"API".
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thawd.deploy.projects.stacks import ProjectError
from thawd.deploy.projects.zip_files import Source, archive

METHOD = "esbuild"
"""The value of `BuildMethod`."""

_LIMIT_S = 300
# Properties by the form of esbuild's flag: `--minify`, `--target=es2020`, and `--external:name` for each of a list.
_FLAGS = {"Minify": "minify", "Sourcemap": "sourcemap", "KeepNames": "keep-names"}
_VALUES = {"Target": "target", "Format": "format", "MainFields": "main-fields", "SourcesContent": "sources-content"}
_LISTS = {"External": "external", "Loader": "loader", "OutExtension": "out-extension"}
_DEFAULTS = {"Minify": True, "Target": "es2020", "Format": "cjs"}


@dataclass(frozen=True, slots=True)
class Bundle:
    """What esbuild made of a function's code.

    Attributes:
        content: a zip file with the bundled modules.
        inputs: the files that it was made of, without those in `node_modules`.
    """

    content: bytes
    inputs: frozenset[Path]


Bundler = Callable[[str, Path, object, str, Mapping[str, str]], Bundle]
"""See `bundle`."""


def find_esbuild(folder: Path, environ: Mapping[str, str]) -> str | None:
    """The path of esbuild: of npm's `node_modules` in the folder or above it, or else on PATH. None: there is none."""
    for place in (folder, *folder.parents):
        installed = place / "node_modules" / ".bin" / "esbuild"
        if installed.is_file() and os.access(installed, os.X_OK):
            return str(installed)
    return shutil.which("esbuild", path=environ.get("PATH"))


def bundle(name: str, folder: Path, properties: object, program: str, environ: Mapping[str, str]) -> Bundle:
    """Bundle the code of a function. Blocks until esbuild has ended.

    Args:
        name: the function's logical id, for messages.
        folder: the folder of its code, where its entry points are.
        properties: `BuildProperties` of its metadata.
        program: path of esbuild.
        environ: environment variables for esbuild.

    Raises:
        ProjectError: a property is wrong, or esbuild failed; the message has what it printed.
    """
    options = _options(name, properties)
    with tempfile.TemporaryDirectory(prefix="thawd-esbuild-") as temporary:
        made, report = Path(temporary) / "made", Path(temporary) / "report.json"
        command = [program, *options, "--bundle", "--platform=node", f"--outdir={made}", f"--metafile={report}"]
        command += ["--log-level=warning", "--color=false"]
        try:
            ended = subprocess.run(
                command,
                cwd=folder,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ProjectError(f"{name}: esbuild has not ended after {_LIMIT_S} s") from error
        if ended.returncode:
            printed = (ended.stderr or ended.stdout).strip() or f"exit status {ended.returncode}"
            raise ProjectError(f"{name}: esbuild failed: {printed}{_way_out(folder, printed)}")
        inputs = json.loads(report.read_bytes())["inputs"]
        return Bundle(archive([Source(made, "")]), frozenset(_files_of(folder, inputs)))


def _options(name: str, properties: object) -> list[str]:
    if not isinstance(properties, dict):
        raise ProjectError(f"{name}: BuildMethod esbuild needs BuildProperties with EntryPoints")
    options = []
    every = {**_DEFAULTS, **properties}
    for entry in _texts(name, "EntryPoints", every.pop("EntryPoints", [])):
        options.append(entry if not entry.startswith("-") else f"./{entry}")
    if not options:
        raise ProjectError(f"{name}: EntryPoints of BuildProperties names no file")
    for key, value in every.items():
        if key in _FLAGS:
            options += [f"--{_FLAGS[key]}"] if _is_true(value) else []
        elif key in _VALUES:
            options.append(f"--{_VALUES[key]}={','.join(_texts(name, key, value))}")
        elif key in _LISTS:
            options += [f"--{_LISTS[key]}:{text}" for text in _texts(name, key, value)]
        else:
            known = ", ".join(("EntryPoints", *_FLAGS, *_VALUES, *_LISTS))
            raise ProjectError(f"{name}: {key} of BuildProperties is none of those that thawd knows: {known}")
    return options


def _texts(name: str, key: str, value: Any) -> list[str]:
    """A property's value as a list: of one that may be a text or a list of texts."""
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str | bool | int) for each in values):
        raise ProjectError(f"{name}: {key} of BuildProperties is {value!r}; allowed: a text, or a list of texts")
    return [str(each).lower() if isinstance(each, bool) else str(each) for each in values]


def _is_true(value: object) -> bool:
    return str(value).lower() == "true"


def _way_out(folder: Path, printed: str) -> str:
    if "Could not resolve" in printed and not (folder / "node_modules").is_dir():
        return f"\nIf {folder / 'package.json'} names it, run `npm install` there."
    return ""


def _files_of(folder: Path, inputs: Mapping[str, object]) -> set[Path]:
    """The files of a report of esbuild, whose names are relative to the folder."""
    files = {(folder / each).resolve() for each in inputs}
    return {each for each in files if "node_modules" not in each.parts and each.is_file()}
