"""Shows packages on one self-contained HTML page: a treemap of each, and which requirement brings what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from thawd.bench.pages import document
from thawd.deploy.packages.contents import Item
from thawd.deploy.packages.making import Packages
from thawd.deploy.packages.planning import FunctionPlan, mb
from thawd.deploy.packages.preparing import Prepared
from thawd.deploy.packages.removal import RULES
from thawd.deploy.packages.treemap import Rectangle, divide

_TEMPLATES = Path(__file__).parent / "templates"
# Of the picture's 100 by 62.5 units. Smaller cells have no name: it could not be read.
_WIDTH, _HEIGHT = 100.0, 62.5
_SMALLEST_NAMED = 14.0
_SMALLEST_DIVIDED = 60.0
_MOST_INNER = 24
_CODE = "code"
_COLOURS = ("run1", "run2", "run3", "run4", "run5")
_OTHER_COLOUR = "other"
_CODE_COLOUR = "warm"


@dataclass(frozen=True, slots=True)
class _Cell:
    """A rectangle of a picture, in percent of it.

    Attributes:
        name: the text in it; may be empty.
        title: the text that is shown while the pointer is on it.
        colour: name of the colour, for the CSS class ``k-NAME``.
        inner: rectangles in it, in percent of the picture, too.
    """

    name: str
    title: str
    colour: str
    left: str
    top: str
    width: str
    height: str
    inner: Sequence[_Cell] = ()


@dataclass(frozen=True, slots=True)
class _Picture:
    """A function on the page."""

    function: str
    told: str
    cells: Sequence[_Cell]
    legend: Sequence[tuple[str, str]]
    rows: Sequence[Sequence[str]]
    rules: Sequence[Sequence[str]]
    notes: Sequence[str]


def page(made: Packages) -> str:
    """Return the page.

    Raises:
        StoreError: Jinja2 is not installed.
    """
    pictures = [_picture(made, each, ready) for each, ready in zip(made.plan.functions, made.prepared, strict=True)]
    layers = [
        (layer.name, ", ".join(layer.functions), mb(layer.unpacked_bytes), mb(layer.packed_bytes))
        for layer in made.plan.layers
    ]
    return document("package.html", _TEMPLATES, pictures=pictures, layers=layers, meanings=list(RULES.items()))


def _picture(made: Packages, each: FunctionPlan, ready: Prepared) -> _Picture:
    roots = {piece.name: piece.brought_by[0] for piece in ready.contents.pieces if piece.brought_by}
    sizes: dict[str, int] = {}
    for piece in ready.contents.pieces:
        root = roots.get(piece.name, piece.name)
        sizes[root] = sizes.get(root, 0) + piece.unpacked_bytes
    ordered = sorted(sizes, key=lambda name: -sizes[name])
    colours = dict(zip(ordered, _COLOURS, strict=False))
    legend = [(colours[name], f"{name} and what it requires, {mb(sizes[name])}") for name in ordered[: len(_COLOURS)]]
    if len(ordered) > len(_COLOURS):
        legend.append((_OTHER_COLOUR, f"{len(ordered) - len(_COLOURS)} other requirements"))
    legend.append((_CODE_COLOUR, f"code, {mb(ready.contents.code.unpacked_bytes)}"))
    by_distribution: dict[str, int] = {}
    for it in ready.removed:
        by_distribution[it.distribution] = by_distribution.get(it.distribution, 0) + it.size_bytes
    return _Picture(
        function=each.function,
        told=_told(made, each, ready),
        cells=_cells(ready, roots, colours),
        legend=legend,
        rows=list(_rows(each, ready, by_distribution)),
        rules=list(_rules(ready)),
        notes=[*each.why, *ready.notes],
    )


def _told(made: Packages, each: FunctionPlan, ready: Prepared) -> str:
    forms = {"zip": "one zip file", "layers": "layers", "split": "a split package", "image": "an image"}
    archive = made.files.get(each.function)
    packed = archive.size_bytes if archive is not None else ready.contents.packed_bytes
    tail = (
        "" if packed is None else f"; {mb(packed)} in the zip file" if archive is not None else f"; {mb(packed)} packed"
    )
    target = f"{each.runtime or 'an image'} on {each.architecture}"
    return (
        f"For {target}, as {forms[each.form]}: {mb(each.unpacked_bytes)} of files, "
        f"of {mb(ready.before_bytes)} before unneeded files were left out{tail}."
    )


def _rows(each: FunctionPlan, ready: Prepared, removed: Mapping[str, int]) -> Iterator[Sequence[str]]:
    code = ready.contents.code
    yield (_CODE, "", mb(code.unpacked_bytes), _packed(code.packed_bytes), "", "the function's folder")
    for piece in sorted(ready.contents.pieces, key=lambda piece: -piece.unpacked_bytes):
        where = " (in the part)" if piece.name in each.part else ""
        yield (
            piece.name,
            piece.version,
            mb(piece.unpacked_bytes),
            _packed(piece.packed_bytes),
            mb(removed[piece.name]) if removed.get(piece.name) else "",
            " \N{RIGHTWARDS ARROW} ".join(piece.brought_by) + where,
        )


def _rules(ready: Prepared) -> Iterator[Sequence[str]]:
    for rule, meaning in RULES.items():
        taken = [it for it in ready.removed if it.rule == rule]
        if taken:
            yield (rule, f"{sum(it.files for it in taken):,}", mb(sum(it.size_bytes for it in taken)), meaning)


def _packed(size_bytes: int | None) -> str:
    return "" if size_bytes is None else mb(size_bytes)


def _cells(ready: Prepared, roots: Mapping[str, str], colours: Mapping[str, str]) -> list[_Cell]:
    pieces: list[tuple[str, int, Sequence[Item], str]] = [
        (
            piece.name,
            piece.unpacked_bytes,
            ready.distributions[piece.name].items,
            " < ".join(reversed(piece.brought_by)),
        )
        for piece in ready.contents.pieces
    ]
    pieces.append((_CODE, ready.contents.code.unpacked_bytes, ready.code, "the function's folder"))
    pieces = sorted((piece for piece in pieces if piece[1] > 0), key=lambda piece: -piece[1])
    cells = []
    whole = Rectangle(0.0, 0.0, _WIDTH, _HEIGHT)
    for (name, size, items, why), place in zip(pieces, divide([piece[1] for piece in pieces], whole), strict=True):
        colour = _CODE_COLOUR if name == _CODE else colours.get(roots.get(name, name), _OTHER_COLOUR)
        inner: Sequence[_Cell] = ()
        if place.width * place.height >= _SMALLEST_DIVIDED:
            inner = _inner(items, place, colour, name)
        cells.append(_cell(name, f"{name}: {mb(size)} ({why})", colour, place, inner))
    return cells


def _inner(items: Sequence[Item], place: Rectangle, colour: str, owner: str) -> list[_Cell]:
    """Return the cells of the largest folders and files in a distribution."""
    sizes: dict[str, int] = {}
    for item in items:
        name = "/".join(item.path.split("/")[:2])
        sizes[name] = sizes.get(name, 0) + item.size_bytes
    largest = sorted(((size, name) for name, size in sizes.items() if size > 0), reverse=True)
    shown, rest = largest[:_MOST_INNER], largest[_MOST_INNER:]
    if rest:
        shown = sorted([*shown, (sum(size for size, _ in rest), "other files")], reverse=True)
    places = divide([size for size, _ in shown], place)
    return [
        _cell(name.rpartition("/")[2], f"{owner}: {name}, {mb(size)}", colour, each)
        for (size, name), each in zip(shown, places, strict=True)
    ]


def _cell(name: str, title: str, colour: str, place: Rectangle, inner: Sequence[_Cell] = ()) -> _Cell:
    named = place.width * place.height >= _SMALLEST_NAMED
    return _Cell(
        name if named else "",
        title,
        colour,
        f"{place.x / _WIDTH:.3%}",
        f"{place.y / _HEIGHT:.3%}",
        f"{place.width / _WIDTH:.3%}",
        f"{place.height / _HEIGHT:.3%}",
        inner,
    )
