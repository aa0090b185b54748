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
    refused: str = ""  # identity of the one that was to replace it, and could not be loaded


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
        failure: why what is there is served on: the store could not be asked when last it was to be, or the model that
            it has by now cannot be loaded; else None.
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
            if resident is None:
                self.misses += 1
                return self._bring(address)
            self._residents.move_to_end(address)
            if not self._is_replaced(resident):
                self.hits += 1
                return resident.loaded
            return self._replace(address, resident)

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
        if current or not resident.refused:
            self.failure = None
        return not current

    def _replace(self, address: str, old: _Resident) -> Loaded:
        """The model that the store has by now, or the old one again where that is broken and the old one is kept."""
        try:
            model = open_model(address, cache=self._cache)
        except ModelError as error:
            self.failure = str(error)
            self.hits += 1
            return old.loaded
        if model.identity == old.refused:
            self.hits += 1
            return old.loaded
        del self._residents[address]  # before another one is loaded, so that the bound holds
        try:
            loaded = self._admit(address, model)
        except Exception as error:  # a loader is anybody's code
            if old.loaded.model.origin == "in place":  # its file is the broken one
                raise
            self.failure = str(error)
            loaded = self._admit(address, old.loaded.model)
            self._residents[address].refused = model.identity
            return loaded
        self.failure = None
        self.replaced += 1
        old.loaded.model.close()
        return loaded

    def _bring(self, address: str) -> Loaded:
        return self._admit(address, open_model(address, cache=self._cache))

    def _admit(self, address: str, model: Model) -> Loaded:
        begun_s = time.monotonic()
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
