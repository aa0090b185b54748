"""Keeps models in memory, up to a size limit: drops the least recently used, and reloads those that were replaced."""

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
    refused: str = ""  # identity of the replacement that could not be loaded


class Residents:
    """Models by their addresses, loaded on demand.

    Args:
        load: loads a `Model` into memory, for example `load_onnx`.
        most_bytes: limit of the total size of the models' files; a single model may be larger.
        follow_s: a requested model is checked for a replacement if its last check was at least this many seconds ago.
            None: models are never checked, and so never replaced.
        cache: the cache on the disk; None: the default one.

    Attributes:
        hits: how often a requested model was in memory.
        misses: how often a model was loaded because it was not in memory.
        replaced: how often a model was loaded because the one at its address had changed.
        failure: why an old model is still in use: the last check could not reach the store, or the replacement cannot
            be loaded. None if neither is the case.
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
            ModelError: the model is not in memory and cannot be opened or loaded.
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
        """Size in bytes of each model in memory, the least recently used one first."""
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
        """Load the model that has replaced `old` at its address; if that fails, return the old model.

        If the new model has overwritten the old model's file, the old model cannot be used. Then the loader's error is
        raised.
        """
        try:
            model = open_model(address, cache=self._cache)
        except ModelError as error:
            self.failure = str(error)
            self.hits += 1
            return old.loaded
        if model.identity == old.refused:
            self.hits += 1
            return old.loaded
        del self._residents[address]  # dropped before the new model is loaded, so that the limit is not exceeded
        try:
            loaded = self._admit(address, model)
        except Exception as error:  # `load` is the caller's code, so it can raise any error
            if old.loaded.model.origin == "in place":  # the replacement has overwritten the old model's file
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
        # Drop other models before this one is loaded, so that all together do not exceed the limit even for a moment.
        while self._residents and held + model.size > self._most_bytes:
            _, gone = self._residents.popitem(last=False)
            held -= gone.loaded.model.size
            gone.loaded.model.close()
        loaded = self._load(model)
        self._residents[address] = _Resident(loaded, begun_s)
        return loaded
