"""Reads the files with environment variables that the option ``environment_file`` of a function names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from thawd.config.findings import KeyPath
from thawd.config.options import functions as options
from thawd.config.sections.reader import Reader
from thawd.grammar import environment_files
from thawd.resources import reserved_variables

NOT_RESERVED = "names that neither Lambda (AWS_REGION, LAMBDA_TASK_ROOT, ...) nor thawd (THAWD_*) reserves"
"""The names that variables of a function may have, in words."""


def read_environment_files(document: Mapping[str, object], reader: Reader) -> dict[str, tuple[Path, ...]]:
    """Return the files with environment variables, by function. `variables_in` reports mistakes."""
    section = document.get("functions")
    tables = section.items() if isinstance(section, dict) else ()
    written = {name: table["environment_file"] for name, table in tables if _names_files(table)}
    return {name: paths_of(value, reader) for name, value in written.items()}


def _names_files(table: object) -> bool:
    kind = next(option.kind for option in options.FUNCTION if option.name == "environment_file")
    return isinstance(table, dict) and "environment_file" in table and kind.accepts(table["environment_file"])


def paths_of(written: str | list[str] | None, reader: Reader) -> tuple[Path, ...]:
    """Return the absolute paths in an option that is a path or a list of paths."""
    texts = [] if written is None else [written] if isinstance(written, str) else written
    return tuple(reader.absolute(text) for text in texts)


def variables_in(files: Sequence[Path], table: Mapping[str, str], reader: Reader, *, path: KeyPath) -> dict[str, str]:
    """Return the variables in ``.env`` files, by name. Mistakes name the file and the line, and never a value.

    Args:
        files: the files; later ones override earlier ones.
        table: the variables of the option ``environment``, which override those of the files.
        reader: collects the mistakes.
        path: path of the option that names the files.
    """
    variables: dict[str, str] = {}
    for file in files:
        shown = os.path.relpath(file, reader.folder) if file.is_relative_to(reader.folder) else str(file)
        if not file.is_file():
            found = f"{'something that is not a regular file' if file.exists() else 'nothing'} at {file}"
            reader.findings.add(path, found=found, allowed="a file that exists")
            continue
        try:
            with file.open("rb") as opened:
                parsed = environment_files.parse(opened.read(environment_files.MOST_BYTES + 1))
        except OSError as error:
            found = f"the file {file}, which cannot be read ({error.strerror})"
            reader.findings.add(path, found=found, allowed="a readable file")
            continue
        except environment_files.EnvironmentFileError as error:
            allowed = "lines NAME=value, with or without quotes and export, and comments that begin with #"
            reader.findings.add(path, found=f"line {error.line} of {shown}: {error.found}", allowed=allowed)
            continue
        reserved = reserved_variables(parsed.keys() - table.keys())
        for name, (value, line) in parsed.items():
            if name in reserved:
                found, allowed = f"the reserved name {name}", NOT_RESERVED
                reader.findings.add(path, found=f"line {line} of {shown}: {found}", allowed=allowed)
            elif not options.VARIABLE_NAME.accepts(name):
                # The name is not shown: it may be a line of a secret, such as a key in Base64, which "=" ends.
                found = f"line {line} of {shown}: a name that is not allowed"
                reader.findings.add(path, found=found, allowed=options.VARIABLE_NAME.allowed)
            else:
                variables[name] = value
    return variables
