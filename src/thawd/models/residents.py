"""Models in memory: bounded, the least recently used one goes first, one that is replaced in its store comes anew."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Callable, Dict, Optional

from thawd.models.cache import Cache
from thawd.models.faults import ModelError
from thawd.models.loaded import Loaded
from thawd.models.opening import Model
from thawd.models.opening import open as open_model


@dataclass
class _Resident:
    loaded: Loaded
    checked_s: float


class Residents:
    """Models by their addresses, loaded on demand.

    Args:
        load: makes a `Loaded` of a `Model`, for example `load_onnx`.
        most_bytes: how much the models may have together, by the size of their files; one alone may have more.
        follow_s: how old the knowledge may be that a model was not replaced, in seconds. None: each stays as it was.
        cache: another cache on the disk than the usual one.

    Attributes:
        hits: how often a model was there.
        misses: how often it was loaded, since it was not there.
        replaced: how often it was loaded, since the store has another one.
        failure: why the store could not be asked when last it was to be, and what is there is served on; else None.
    """

    def __init__(
        self,
        load: Callable[[Model], Loaded],
        *,
        most_bytes: int,
        follow_s: Optional[float] = 2.0,
        cache: Optional[Cache] = None,
    ) -> None:
        self._load = load
        self._most_bytes = most_bytes
        self._follow_s = follow_s
        self._cache = cache
        self._lock = threading.Lock()
        self._residents: "OrderedDict[str, _Resident]" = OrderedDict()
        self.hits = self.misses = self.replaced = 0
        self.failure: Optional[str] = None

    def get(self, address: str) -> Loaded:
        """The model at `address`, in memory.

        Raises:
            ModelError: it is not there, and cannot be opened.
        """
        with self._lock:
            resident = self._residents.get(address)
            if resident is not None and not self._is_replaced(resident):
                self._residents.move_to_end(address)
                self.hits += 1
                return resident.loaded
            if resident is None:
                self.misses += 1
            else:
                self.replaced += 1
                del self._residents[address]
            return self._bring(address)

    def sizes(self) -> Dict[str, int]:
        """Bytes of each model that is there, the least recently used one first."""
        with self._lock:
            return {address: resident.loaded.model.size for address, resident in self._residents.items()}

    def _is_replaced(self, resident: _Resident) -> bool:
        now_s = time.monotonic()
        if self._follow_s is None or now_s - resident.checked_s < self._follow_s:
            return False
        resident.checked_s = now_s
        try:
            current = resident.loaded.model.is_current()
        except ModelError as error:
            self.failure = str(error)
            return False
        self.failure = None
        return not current

    def _bring(self, address: str) -> Loaded:
        begun_s = time.monotonic()
        model = open_model(address, cache=self._cache)
        held = sum(resident.loaded.model.size for resident in self._residents.values())
        while (
            self._residents and held + model.size > self._most_bytes
        ):  # before it is loaded, not after: a bound is one
            _, gone = self._residents.popitem(last=False)
            held -= gone.loaded.model.size
            gone.loaded.model.close()
        loaded = self._load(model)
        self._residents[address] = _Resident(loaded, begun_s)
        return loaded
