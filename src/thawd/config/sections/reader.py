"""Reads a table of ``thawd.toml``: compares its keys and values with the options of that table, reports mistakes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thawd.config import kinds
from thawd.config.findings import Findings, KeyPath, one_of
from thawd.config.kinds import Kind
from thawd.config.options.option import Option


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads tables of one parsed file.

    Attributes:
        folder: folder of the file, where relative paths begin.
        home: path that replaces ``~``; None: ``HOME`` is not set, and ``~`` is not replaced.
        findings: collects the mistakes.
    """

    folder: Path
    home: str | None
    findings: Findings

    def absolute(self, text: str) -> Path:
        """Return `text` as an absolute path, with ``~`` replaced."""
        if self.home and (text == "~" or text.startswith("~/")):
            text = self.home + text[1:]
        return self.folder / text

    def accepts(self, kind: Kind, value: object, *, path: KeyPath) -> bool:
        """Return whether `value` is allowed, and report a mistake if not."""
        if kind.accepts(value):
            return True
        self.findings.add(path, found=kind.describe(value), allowed=kind.allowed)
        return False

    def mapping(self, value: object, *, path: KeyPath, allowed: str) -> dict[str, object]:
        """Return `value` if it is a table. If not, report the mistake and return an empty table."""
        if isinstance(value, dict):
            return value
        self.findings.add(path, found=kinds.table(allowed).describe(value), allowed=allowed)
        return {}

    def table(self, value: object, *, path: KeyPath, known: tuple[Option, ...]) -> dict[str, Any]:
        """Return the valid values of a table, by option. Wrong values and unknown keys are reported.

        If a required option is missing or wrong, its value is an empty text.
        """
        by_name = {option.name: option for option in known}
        values: dict[str, Any] = {option.name: "" for option in known if option.required}
        table = self.mapping(value, path=path, allowed="a table of options")
        for key, entry in table.items():
            option = by_name.get(key)
            if option is None:
                allowed = one_of(key, by_name, what="options here")
                self.findings.add((*path, key), found="an unknown option", allowed=allowed)
            elif self.accepts(option.kind, entry, path=(*path, key)):
                values[key] = entry
        for name in values.keys() - table.keys():
            if isinstance(value, dict):
                self.findings.add((*path, name), found="nothing", allowed=by_name[name].kind.allowed)
        return values

    def named(self, document: Mapping[str, object], section: str, *, names: Kind) -> Iterator[tuple[str, object]]:
        """Yield each name in a section, such as ``functions``, with its table.

        A name that is not allowed is reported, and yielded all the same, so that mistakes in its table are found too.
        """
        allowed = f"tables, each as [{section}.NAME]"
        for name, value in self.mapping(document.get(section, {}), path=(section,), allowed=allowed).items():
            if not names.accepts(name):
                found = f"the name {kinds.spell(name)}"
                self.findings.add((section, name), found=found, allowed=names.allowed)
            yield name, value
