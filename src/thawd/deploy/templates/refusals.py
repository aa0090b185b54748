"""The error for templates that cannot be evaluated."""

from __future__ import annotations


class TemplateError(ValueError):
    """The template, or a parameter's value, is wrong. CloudFormation answers with the code ``ValidationError`` (400).

    Attributes:
        message: CloudFormation's text where it is known, else the problem and the remedy.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def unresolved(names: list[str], section: str) -> TemplateError:
    """Return the error for references to names that the template does not declare, or whose condition does not hold."""
    return TemplateError(
        f"Template format error: Unresolved resource dependencies [{', '.join(names)}] in the {section} block of the "
        "template"
    )


MOST_CHARACTERS = 4 * 1024 * 1024
"""Longest text that a function may make. A few short functions could otherwise make one of many gigabytes."""


def check_length(characters: int, *, function: str) -> None:
    """Refuse a text that a function would make.

    Raises:
        TemplateError: the text would have more than `MOST_CHARACTERS`.
    """
    if characters > MOST_CHARACTERS:
        raise TemplateError(f"Template error: {function} makes a text of more than {MOST_CHARACTERS} characters")
