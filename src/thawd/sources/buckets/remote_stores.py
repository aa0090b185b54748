"""The stores that watchers of remote buckets record into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from thawd.stores.objects.catalog import ObjectCatalog
from thawd.stores.objects.listings import Listings


@dataclass(frozen=True, slots=True)
class WatcherStores:
    """Stores that remote-bucket watchers record into.

    Attributes:
        objects: the catalog of objects.
        listings: stores how far listings are.
        is_full: whether the queue takes no events at the moment; watchers wait meanwhile.
    """

    objects: ObjectCatalog
    listings: Listings
    is_full: Callable[[], bool] = lambda: False
