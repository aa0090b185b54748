"""Divides the distributions of several functions into layers, so that functions share equal distributions.

This module has no side effects.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from thawd.deploy.packages.sizes import END_BYTES, Contents, Piece
from thawd.deploy.packages.targets import Limits

PYTHON_FOLDER = "python/"
"""Folder of a layer that is on the search path of Python. Source: developer guide, "Packaging layers"."""

_Users = tuple[str, ...]


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer.

    Attributes:
        name: name of the layer in the plan.
        runtime: Lambda's identifier of the runtime for which the layer is made.
        architecture: ``x86_64`` or ``arm64``.
        distributions: names of the distributions in it.
        functions: names of the functions that use it.
        unpacked_bytes: sum of its files' sizes.
        packed_bytes: size of its zip file.
        direct: whether the zip file may be in the request that publishes the layer; if not, it is uploaded to S3.
    """

    name: str
    runtime: str | None
    architecture: str
    distributions: tuple[str, ...]
    functions: _Users
    unpacked_bytes: int
    packed_bytes: int
    direct: bool


def share(
    functions: Sequence[Contents], limits: Limits, *, taken: Collection[str] = ()
) -> tuple[list[Layer], dict[str, tuple[str, ...]]]:
    """Return the layers for functions, and for each function the names of its layers.

    Distributions that the same functions use are in the same layer, if the layer stays small enough for a request.

    A function has at most `Limits.layers` layers. If it would have more, it gets its own copies of the contents of its
    smallest shared layers. Other functions still share them. If that is not enough, its last layer takes the rest. That
    layer may be too large for a request, and is then uploaded to S3.

    Args:
        functions: the functions.
        limits: Lambda's limits.
        taken: names that layers may not have: archives are known by the names of layers and functions.
    """
    names = (name for number in itertools.count(1) if (name := f"layer-{number}") not in taken)
    targets = dict.fromkeys((each.runtime, each.architecture) for each in functions)
    layers: list[Layer] = []
    for runtime, architecture in targets:
        ours = [each for each in functions if (each.runtime, each.architecture) == (runtime, architecture)]
        for users, pieces in _divided(ours, limits):
            layers.append(
                Layer(
                    name=next(names),
                    runtime=runtime,
                    architecture=architecture,
                    distributions=tuple(piece.name for piece in pieces),
                    functions=users,
                    unpacked_bytes=sum(piece.unpacked_bytes for piece in pieces),
                    packed_bytes=_packed(pieces),
                    direct=_packed(pieces) <= limits.direct_bytes,
                )
            )
    used = {
        each.function: tuple(layer.name for layer in layers if each.function in layer.functions) for each in functions
    }
    return layers, used


def _divided(functions: Sequence[Contents], limits: Limits) -> Iterable[tuple[_Users, list[Piece]]]:
    """Yield the layers of one target's functions: for each, the functions that use it and the distributions in it."""
    sets = _by_users(functions)
    while (excess := _excess([each.function for each in functions], sets, limits)) is not None:
        _leave(*excess, sets)
    for users, pieces in sorted(sets.items(), key=lambda entry: (-len(entry[0]), entry[0])):
        # A function that would still have too many layers shares none of them. Its last layer takes all that is left.
        for chosen in _bins(pieces, limits, most=limits.layers if len(users) == 1 else None):
            yield users, chosen


def _excess(
    functions: Sequence[str], sets: Mapping[_Users, Sequence[Piece]], limits: Limits
) -> tuple[_Users, str] | None:
    """Find a function that has too many layers. Return its smallest shared set, and its name; None: there is none."""
    for function in functions:
        shared = [users for users in sets if function in users and len(users) > 1]
        if shared and _count(function, sets, limits) > limits.layers:
            return min(shared, key=lambda users: (_packed(sets[users]), users)), function
    return None


def _by_users(functions: Sequence[Contents]) -> dict[_Users, list[Piece]]:
    """Return the distributions by the functions that use them."""
    users: dict[tuple[str, str], list[str]] = {}
    pieces: dict[tuple[str, str], Piece] = {}
    for each in functions:
        for piece in each.pieces:
            users.setdefault((piece.name, piece.digest), []).append(each.function)
            pieces[piece.name, piece.digest] = piece
    sets: dict[_Users, list[Piece]] = {}
    for key, names in users.items():
        sets.setdefault(tuple(names), []).append(pieces[key])
    return sets


def _count(function: str, sets: Mapping[_Users, Sequence[Piece]], limits: Limits) -> int:
    """Return the number of layers that a function would have if each were small enough for a request."""
    return sum(len(_bins(pieces, limits)) for users, pieces in sets.items() if function in users)


def _leave(users: _Users, function: str, sets: dict[_Users, list[Piece]]) -> None:
    """Give `function` its own copies of the distributions that it shares with the other functions in `users`."""
    pieces = sets.pop(users)
    rest = tuple(name for name in users if name != function)
    for left in (rest, (function,)):
        sets.setdefault(left, []).extend(pieces)


def _bins(pieces: Sequence[Piece], limits: Limits, *, most: int | None = None) -> list[list[Piece]]:
    """Divide pieces into layers that are small enough for a request: the largest first, each into the first that fits.

    A piece that is too large for a request is a layer of its own. If `most` is given, there are at most `most` layers,
    and the last one takes all remaining pieces.
    """
    bins: list[list[Piece]] = []
    for piece in sorted(pieces, key=lambda piece: (-(piece.packed_bytes or 0), piece.name)):
        fits = next((each for each in bins if _packed([*each, piece]) <= limits.direct_bytes), None)
        if fits is not None:
            fits.append(piece)
        elif most is not None and len(bins) >= most:
            bins[-1].append(piece)
        else:
            bins.append([piece])
    return [sorted(each, key=lambda piece: piece.name) for each in bins]


def _packed(pieces: Iterable[Piece]) -> int:
    """Return the size of a layer's zip file.

    The file contains each path twice, and each path begins with `PYTHON_FOLDER`.
    """
    paths = 2 * len(PYTHON_FOLDER)
    return sum((piece.packed_bytes or 0) + piece.files * paths for piece in pieces) + END_BYTES
