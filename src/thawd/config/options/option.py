"""One option of ``thawd.toml``: its key, the values it allows, its meaning and its default."""

from __future__ import annotations

from dataclasses import dataclass

from thawd.config.kinds import Kind

REQUIRED = "required"
"""In the place of a default: the option has none and must be set."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        name: its key.
        kind: what is allowed.
        meaning: one sentence or two for the user, with the unit.
        default: the default in words, where the struct's own would not tell; empty: taken from the struct.
    """

    name: str
    kind: Kind
    meaning: str
    default: str = ""

    @property
    def required(self) -> bool:
        """Whether the option must be given."""
        return self.default == REQUIRED
