"""What those record in who watch a bucket elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from thawd.state.listings import Listings
from thawd.state.objects import ObjectCatalog


@dataclass(frozen=True, slots=True)
class Books:
    """Attributes:
    objects: the catalog of objects.
    listings: how far listings are.
    is_full: whether the queue takes no events at the moment; watchers wait meanwhile.
    """

    objects: ObjectCatalog
    listings: Listings
    is_full: Callable[[], bool] = lambda: False
