"""Compares the answers of two processes. Uses only the standard library, because it also runs in frozen processes."""

from __future__ import annotations

import math
from typing import Any

RELATIVE_TOLERANCE = 1e-5
ABSOLUTE_TOLERANCE = 1e-6


def first_difference(got: Any, wanted: Any, place: str) -> str | None:
    """Return the first place where two answers differ, or None. Floats may differ by rounding."""
    if isinstance(wanted, float) and isinstance(got, float):
        same = math.isclose(got, wanted, rel_tol=RELATIVE_TOLERANCE, abs_tol=ABSOLUTE_TOLERANCE)
    elif isinstance(wanted, list) and isinstance(got, list) and len(got) == len(wanted):
        found = (first_difference(a, b, f"{place}[{at}]") for at, (a, b) in enumerate(zip(got, wanted, strict=True)))
        return next((difference for difference in found if difference), None)
    elif isinstance(wanted, dict) and isinstance(got, dict) and got.keys() == wanted.keys():
        found = (first_difference(got[key], wanted[key], f"{place}[{key!r}]") for key in wanted)
        return next((difference for difference in found if difference), None)
    else:
        same = type(got) is type(wanted) and got == wanted
    return None if same else f"{place} is {got!r}, must be {wanted!r}"
