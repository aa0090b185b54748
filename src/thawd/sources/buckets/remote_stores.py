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
        listings: stores when each bucket's first listing began and its last listing was completed.
        is_full: returns whether the asynchronous queue is full now; watchers wait while it is.
    """

    objects: ObjectCatalog
    listings: Listings
    is_full: Callable[[], bool] = lambda: False
