"""Makes HTML pages from templates. Each page is a single file that includes its styles and drawings.

Templates are in folders named `templates`, next to the modules that fill them in. All inserted text is escaped, except
values of the type `Markup`. Rendering fails if a template uses a name without a value.
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
    """Check, before a measurement, that Jinja2 is installed.

    Raises:
        StoreError: Jinja2 is not installed.
    """
    try:
        import jinja2  # noqa: F401
    except ImportError:
        raise StoreError(
            "HTML pages need jinja2, which is not installed; install it with: pip install 'thawd[bench]', or leave out "
            "--html"
        ) from None


def document(template: str, folder: Path = _OWN, /, **values: object) -> str:
    """Render a whole page.

    Args:
        template: name of a file in `folder`, or else in the folder `templates` of `thawd.bench`, which all pages share.
        folder: folder that is searched first for templates.
        values: values for the template, by name.

    Raises:
        StoreError: Jinja2 is not installed.
    """
    require_templates()
    return _environment(folder).get_template(template).render(values)


def fragment(template: str, **values: object) -> Markup:
    """Render a part of a page. The result is `Markup`, so that other templates insert it without escaping it.

    Args:
        template: name of a file in the folder `templates` of `thawd.bench`.
        values: values for the template, by name.

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
