"""HTML pages from templates: one file each that needs nothing else, styles and drawings in it.

Templates lie in `templates` folders beside the modules that fill them. All text that is put into one is escaped, except
of the type `Markup`. A template that uses a name it is not given fails.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from thawd.errors import StoreError

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_OWN = Path(__file__).parent / "templates"


def require_templates() -> None:
    """Ask for Jinja2 before anything is measured.

    Raises:
        StoreError: it is not installed.
    """
    try:
        import jinja2  # noqa: F401
    except ImportError:
        raise StoreError("pages need the library jinja2: pip install 'thawd[bench]'; or leave out --html") from None


def document(template: str, folder: Path = _OWN, /, **values: object) -> str:
    """A whole page.

    Args:
        template: name of a file in `folder`, or else among those of reports, which every template may use.
        folder: with templates.
        values: what the template shows, by name.

    Raises:
        StoreError: Jinja2 is not installed.
    """
    require_templates()
    return _environment(folder).get_template(template).render(values)


def fragment(template: str, **values: object) -> Markup:
    """A part of a page, which other templates take as it is.

    Raises:
        StoreError: Jinja2 is not installed.
    """
    text = document(template, **values)
    from markupsafe import Markup

    return Markup(text)


@cache
def _environment(folder: Path) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from thawd.bench.plots import number
    from thawd.bench.text import shown

    made = Environment(
        loader=FileSystemLoader([folder, _OWN]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {"number": number, "shown": shown, "duration": _duration, "thousands": _thousands}
    return made


def _duration(ms: float) -> Markup:
    from markupsafe import Markup

    from thawd.bench.plots import number

    seconds = ms >= 10_000
    return Markup("{}&nbsp;{}").format(number(ms / 1000 if seconds else ms), "s" if seconds else "ms")


def _thousands(count: int) -> str:
    return f"{count:,}"
