"""The planner: decides from sizes how each function is packaged. It is pure; its plan is data.

It takes the first form that fits, in this order:

- ``zip``: one zip file, small enough for the request that creates the function.
- ``layers``: the code in a zip file, the requirements in layers. Functions share a layer for the distributions that
  they have in common.
- ``split``: the files beyond Lambda's limit are in a part, which the function fetches from S3 into its ``/tmp`` in the
  init phase. Only requirements are moved there, because code may read its own files by relative paths.
- ``image``: a container image.

Source: developer guide, "Lambda quotas".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from thawd.deploy.packages.layering import Layer, share
from thawd.deploy.packages.sizes import END_BYTES, Contents, Piece
from thawd.deploy.packages.targets import Limits, PackageError

FORMS = ("zip", "layers", "split", "image")
AUTO = "auto"
LOADER_BYTES = 16_384
"""Room for the loader of a split package and its list of parts."""
# The loader imports these to fetch the part, so they cannot be in it.
_NEEDED_BY_LOADER = frozenset({"boto3", "botocore", "s3transfer", "jmespath", "urllib3", "python-dateutil", "six"})
_MIB = 1024 * 1024


class FunctionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How one function is packaged.

    Attributes:
        function: name of the function.
        form: one of `FORMS`.
        runtime: Lambda's runtime identifier; None: the function declares another kind of program.
        architecture: ``x86_64`` or ``arm64``.
        handler: the handler that Lambda is to call.
        direct: whether its zip file may be in the request that creates the function; if not, it is uploaded to S3.
        inside: names of the distributions in the zip file, beside the code.
        layers: names of its layers, in order.
        part: names of the distributions in the part that the function fetches; empty if it is not split.
        unpacked_bytes: size of all files.
        ephemeral_storage_mb: size of ``/tmp`` that the function needs, MiB.
        why: why no smaller form fits, one sentence each.
    """

    function: str
    form: str
    runtime: str | None
    architecture: str
    handler: str
    direct: bool
    inside: tuple[str, ...]
    layers: tuple[str, ...] = ()
    part: tuple[str, ...] = ()
    unpacked_bytes: int
    ephemeral_storage_mb: int
    why: tuple[str, ...] = ()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How all functions are packaged.

    Attributes:
        functions: the functions' plans, in the order of the configuration.
        layers: all layers.
    """

    functions: tuple[FunctionPlan, ...]
    layers: tuple[Layer, ...]


def plan(contents: Sequence[Contents], form: str = AUTO, limits: Limits | None = None) -> Plan:
    """Return how functions are packaged.

    Args:
        contents: the parts of the functions' packages, with their sizes.
        form: the form for all of them, one of `FORMS`; ``auto``: for each the first one that fits.
        limits: Lambda's limits.

    Raises:
        PackageError: a function fits into no form, or not into the given one.
    """
    limits = limits or Limits()
    chosen: dict[str, tuple[str, list[str]]] = {}
    problems = []
    for each in contents:
        fits, why = _choose(each, form, limits)
        if fits is None:
            problems.append(f"{each.function} fits into no {'form' if form == AUTO else form}: {'; '.join(why)}")
        else:
            chosen[each.function] = fits, why
    if problems:
        raise PackageError("\n".join(problems))
    layered = [each for each in contents if chosen[each.function][0] == "layers"]
    layers, used = share(layered, limits, taken={each.function for each in contents})
    return Plan(
        functions=tuple(_planned(each, *chosen[each.function], used, limits) for each in contents),
        layers=tuple(layers),
    )


def _choose(each: Contents, form: str, limits: Limits) -> tuple[str | None, list[str]]:
    """Return the first form that fits, or None, and why the forms before do not fit."""
    why: list[str] = []
    for candidate in FORMS if form == AUTO else (form,):
        reason = _obstacle(each, candidate, limits, strict=form == AUTO)
        if reason is None:
            return candidate, why
        why.append(f"{candidate}: {reason}")
    return None, why


def _obstacle(each: Contents, form: str, limits: Limits, *, strict: bool) -> str | None:
    """Return why a function cannot be packaged in a form; None: it can.

    Args:
        each: the function.
        form: the form.
        limits: Lambda's limits.
        strict: whether a zip file must be small enough for a request if layers would help.
    """
    total = each.unpacked_bytes
    if form == "image":
        return None if total <= limits.image_bytes else f"{mb(total)} of files; at most {mb(limits.image_bytes)}"
    if form == "layers" and not each.pieces:
        return "the function has no requirements, and its code stays in one zip file"
    if form == "split":
        return _obstacle_to_split(each, limits)
    if total >= limits.unpacked_bytes:
        return f"{mb(total)} unpacked; less than {mb(limits.unpacked_bytes)} allowed"
    packed = (each.packed_bytes or 0) + END_BYTES
    if form == "zip" and strict and each.pieces and packed > limits.direct_bytes:
        return f"{mb(packed)} packed; at most {mb(limits.direct_bytes)} in a request"
    return None


def _obstacle_to_split(each: Contents, limits: Limits) -> str | None:
    moved = moved_pieces(each, limits)
    left = each.unpacked_bytes - sum(piece.unpacked_bytes for piece in moved) + LOADER_BYTES
    if not moved:
        return "there are no requirements that the function could fetch when it starts"
    if left >= limits.unpacked_bytes:
        return f"{mb(left)} are code, which cannot be moved; less than {mb(limits.unpacked_bytes)} allowed"
    needed = _storage_mb(moved)
    if needed > each.ephemeral_storage_mb:
        return (
            f"the part needs {needed} MiB of /tmp, and the function has {each.ephemeral_storage_mb}; set "
            f"ephemeral_storage_mb = {needed} in thawd.toml"
            if needed <= _MOST_STORAGE_MB
            else f"the part needs {needed} MiB of /tmp; Lambda has at most {_MOST_STORAGE_MB}"
        )
    return None


_MOST_STORAGE_MB = 10_240
_SPARE_STORAGE_MB = 64
"""Room in /tmp for the function's own files, beside the part."""


def _storage_mb(moved: Sequence[Piece]) -> int:
    files = sum(piece.files for piece in moved)
    unpacked = sum(piece.unpacked_bytes for piece in moved) + files * 4096  # each file fills its last block
    return -(-unpacked // _MIB) + _SPARE_STORAGE_MB


def moved_pieces(each: Contents, limits: Limits) -> tuple[Piece, ...]:
    """Return the distributions that a split package moves into its part, in whole groups (`distributions.groups`).

    The smallest group that is enough is moved. If none is, the largest is moved, and so on for the rest. If everything
    would fit without a part, the largest group is moved.
    """
    groups: dict[str, list[Piece]] = {}
    for piece in each.pieces:
        groups.setdefault(piece.group, []).append(piece)
    movable = [group for group in groups.values() if not _NEEDED_BY_LOADER & {piece.name for piece in group}]
    # Descending by size; equal sizes in the order of their names, so that the same contents give the same plan.
    movable.sort(key=lambda group: (-_bytes(group), group[0].name))
    excess = max(1, each.unpacked_bytes + LOADER_BYTES - limits.unpacked_bytes + 1)
    if excess == 1 and movable:
        return tuple(movable[0])
    moved: list[Piece] = []
    while movable and excess > 0:
        enough = [group for group in movable if _bytes(group) >= excess]
        group = enough[-1] if enough else movable[0]
        movable.remove(group)
        moved += group
        excess -= _bytes(group)
    return tuple(sorted(moved, key=lambda piece: piece.name))


def _bytes(pieces: Sequence[Piece]) -> int:
    return sum(piece.unpacked_bytes for piece in pieces)


def _planned(
    each: Contents, form: str, why: list[str], used: Mapping[str, tuple[str, ...]], limits: Limits
) -> FunctionPlan:
    inside = {piece.name: piece for piece in each.pieces} if form in ("zip", "split", "image") else {}
    part: tuple[Piece, ...] = ()
    storage_mb = each.ephemeral_storage_mb
    if form == "split":
        part = moved_pieces(each, limits)
        for piece in part:
            del inside[piece.name]
    packed = (each.code.packed_bytes or 0) + sum(piece.packed_bytes or 0 for piece in inside.values()) + END_BYTES
    packed += LOADER_BYTES if part else 0
    return FunctionPlan(
        function=each.function,
        form=form,
        runtime=each.runtime,
        architecture=each.architecture,
        handler="thawd_parts.handler" if form == "split" else each.handler,
        direct=form != "image" and packed <= limits.direct_bytes,
        inside=tuple(inside),
        layers=used.get(each.function, ()),
        part=tuple(piece.name for piece in part),
        unpacked_bytes=each.unpacked_bytes,
        ephemeral_storage_mb=storage_mb,
        why=tuple(why),
    )


def mb(size_bytes: float) -> str:
    """Return a size for people, in MB of 2^20 bytes, as Lambda's limits of 50 and 250 MB are meant; or in kB."""
    megabytes = size_bytes / _MIB
    if megabytes < 0.1:
        return f"{size_bytes / 1024:,.1f} kB"
    return f"{megabytes:,.0f} MB" if megabytes >= 100 else f"{megabytes:,.1f} MB"
