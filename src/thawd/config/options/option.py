"""One option of ``thawd.toml``: its key, the values it allows, its meaning and its default."""

from __future__ import annotations

from dataclasses import dataclass

from thawd.config.kinds import Kind

REQUIRED = "required"
"""Value of `Option.default` if there is no default and users must set the option."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        name: key of the option in its table.
        kind: the values that are allowed.
        meaning: one or two sentences for the user, with the unit.
        default: the default in words; empty: the documentation shows the default of the struct's field.
    """

    name: str
    kind: Kind
    meaning: str
    default: str = ""

    @property
    def required(self) -> bool:
        """Whether users must set the option."""
        return self.default == REQUIRED
