"""Saves the state of moto's backends on disk, for ``thawd up --aws``. This runs in the emulator's own process.

moto emulates AWS services; its backends are Python objects, one for each service, account and region, that contain the
services' resources.

The folder for the state contains ``state``, which is a line of JSON followed by one pickle of all backends;
``objects``, which has a file for the contents of each S3 object, so that a small change does not write all of them
again; and ``lock``. Pickles are read only from the data folder. That folder also contains functions' code, so a user
who can write to it can run programs as thawd anyway.

Some of moto's objects cannot be pickled directly. Locks are created again, anonymous functions are saved as byte code,
and keys of `cryptography` as DER. If a backend contains an object that still cannot be pickled, no backend of its
service is saved, in any account or region. This is reported, and the other services are saved.
"""

from __future__ import annotations

import collections
import fcntl
import hashlib
import importlib
import io
import json
import marshal
import os
import pickle
import shutil
import sys
import threading
import time
import types
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from thawd.server.emulator.cloudformation.saved_moto_stacks import RENAMED
from thawd.server.emulator.trial_load import passing
from thawd.system import folders

_FORMAT = 1
_LOCK_WAIT_S = 30.0
_LOCK_RETRY_S = 0.05
_PIECE_BYTES = 1 << 20
_BODY = "_thawd_body"
_BUFFER_FIELDS = ("_value_buffer", "lock", _BODY)
# Classes of saved objects that have moved since an earlier version of thawd: their module and name, then and now.
_MOVED = {
    ("thawd.server.emulator.schedules", "_Progress"): ("thawd.server.emulator.eventbridge_schedules", "_Progress"),
}
_LOCK = type(threading.Lock())
_RLOCK = type(threading.RLock())


class StateError(Exception):
    """The folder cannot be used; the message says why, and what to do."""


class EmulatedState:
    """The folder with the saved state of the emulated services. It is locked for this process.

    Args:
        folder: the folder; created when missing, private to its owner.

    Attributes:
        left_out: for each service that is not saved, the reason, by the service's name.

    Raises:
        StateError: another process has locked the folder, or it cannot be created.
    """

    def __init__(self, folder: Path) -> None:
        self.left_out: dict[str, str] = {}
        self._folder = folder
        self._file = folder / "state"
        self._objects = folder / "objects"
        try:
            folders.make(folder, mode=0o700)
            folders.make(self._objects, mode=0o700)
            self._lock = _lock(folder / "lock")
        except OSError as error:
            raise StateError(f"the folder {folder} cannot be used: {error.strerror}") from error
        folders.remove_unfinished(folder)

    def load(self) -> None:
        """Load the saved state, if there is one, into moto's backends.

        Raises:
            StateError: another version of moto or Python wrote the state, or the state is damaged.
        """
        try:
            content = self._file.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise StateError(f"{self._file} cannot be read: {error.strerror}") from error
        line, _, pickled = content.partition(b"\n")
        way_out = (
            f"move {self._folder} to another place: it contains only the state of S3, DynamoDB and the other services "
            "of --aws"
        )
        try:
            head = json.loads(line)
            wrote = (head["format"], head["moto"], head["python"])
            digest = head["sha256"]
        except (ValueError, KeyError, TypeError) as error:
            raise StateError(f"{self._file} is damaged; restore it from a backup, or {way_out}") from error
        if wrote != (_FORMAT, *_versions()):
            raise StateError(
                f"{self._file} cannot be loaded: it was written with moto {wrote[1]} on Python {wrote[2]}, but moto "
                f"{_versions()[0]} and Python {_versions()[1]} are in use; install the former versions again, or "
                f"{way_out}"
            )
        if hashlib.sha256(pickled).hexdigest() != digest:
            raise StateError(f"{self._file} is damaged; restore it from a backup, or {way_out}")
        try:
            for backend, state in _unpickled(pickled, self._objects):
                backend.__dict__.clear()
                backend.__dict__.update(state)
        except Exception as error:  # moto's classes may raise any exception
            raise StateError(f"{self._file} cannot be loaded: {error!r}; {way_out}") from error

    def take(self) -> SavedState:
        """Copy the state of all backends. No backend may change meanwhile.

        Raises:
            RuntimeError: a backend changed during the copy; try again.
        """
        bodies: dict[str, Any] = {}
        backends = [backend for backend in _backends() if _service(backend) not in self.left_out]
        try:
            return SavedState(_pickled(backends, bodies), bodies)
        except Exception as error:
            _require_lasting(error)
        self._leave_out(backends, lambda backend: _pickled([backend], {}))
        bodies.clear()
        return SavedState(_pickled([one for one in backends if _service(one) not in self.left_out], bodies), bodies)

    def can_be_loaded(self, saved: SavedState) -> bool:
        """Return whether another process can load a state.

        If not, the services that prevent that are left out from now on.
        """
        try:
            _unpickled(saved.pickled, None)
        except Exception:
            self._leave_out(list(_backends()), lambda backend: _unpickled(_pickled([backend], {}), None))
            return False
        return True

    def _leave_out(self, backends: list[Any], attempt: Callable[[Any], object]) -> None:
        for backend in backends:
            try:
                attempt(backend)
            except Exception as error:
                _require_lasting(error)
                self.left_out[_service(backend)] = f"{type(error).__name__}: {error}"

    def write(self, saved: SavedState) -> None:
        """Write a state to disk. It replaces the last one.

        Raises:
            OSError: the state cannot be written; the last one is unchanged.
            ValueError: an S3 object was removed after the state was copied, so its contents are gone; copy the state
                again.
        """
        for name, key in saved.bodies.items():
            path = self._objects / name
            if not path.exists():
                with folders.replacing(path) as file, key.lock:
                    key._value_buffer.seek(0)
                    shutil.copyfileobj(key._value_buffer, file, _PIECE_BYTES)
        moto, python = _versions()
        digest = hashlib.sha256(saved.pickled).hexdigest()
        head = {"format": _FORMAT, "moto": moto, "python": python, "sha256": digest}
        with folders.replacing(self._file) as file:
            file.write(json.dumps(head).encode() + b"\n")
            file.write(saved.pickled)
        for path in self._objects.iterdir():
            if path.name not in saved.bodies:
                path.unlink(missing_ok=True)


class SavedState:
    """Copy of the state of all backends at one moment.

    Attributes:
        pickled: the pickled state, without the contents of S3 objects.
        bodies: the S3 objects in the state, as moto's objects, by the names of the files for their contents.
    """

    __slots__ = ("bodies", "pickled")

    def __init__(self, pickled: bytes, bodies: dict[str, Any]) -> None:
        self.pickled = pickled
        self.bodies = bodies


def _lock(path: Path) -> int:
    """Take a lock that is released when this process exits.

    Wait for it: if a server was killed, its emulator keeps the lock until it has saved the state.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until_s = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until_s:
                raise StateError(
                    f"another emulator uses the folder {path.parent}; stop the server that it belongs to"
                ) from None
            time.sleep(_LOCK_RETRY_S)
        else:
            return fd


def _versions() -> tuple[str, str]:
    from moto import __version__

    return __version__, f"{sys.version_info[0]}.{sys.version_info[1]}"


def _backends() -> Iterator[Any]:
    from moto.core.base_backend import BackendDict

    instances: Any = BackendDict._instances  # type: ignore[misc]
    for instance in list(instances):
        for by_region in list(instance.values()):
            yield from list(by_region.values())


def _service(backend: Any) -> str:
    return type(backend).__module__.split(".")[1]


def _pickled(backends: list[Any], bodies: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, bodies).dump([(backend, backend.__dict__) for backend in backends])
    return buffer.getvalue()


def _unpickled(pickled: bytes, objects: Path | None) -> Any:
    """Load backends with their attributes.

    If `objects` is None, this is a trial, which only shows whether the state can be loaded: the backends in use do not
    change, and S3 objects are loaded without contents.
    """
    _reading.objects = objects
    return _Unpickler(io.BytesIO(pickled), is_trial=objects is None).load()


def _require_lasting(error: Exception) -> None:
    """Raise the error again if a change during the copy caused it, as with "dictionary changed size"."""
    if isinstance(error, RuntimeError) and not isinstance(error, RecursionError):
        raise error


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, bodies: dict[str, Any]) -> None:
        from moto.core.base_backend import AccountSpecificBackend, BackendDict, BaseBackend
        from moto.s3.models import FakeKey

        super().__init__(file, protocol=5)
        self._bodies = bodies
        self._kinds = (BaseBackend, AccountSpecificBackend, BackendDict)
        self._reduces: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
            (FakeKey, self._reduce_object),
            (_LOCK, lambda obj: (_new_lock, ())),
            (_RLOCK, lambda obj: (_new_rlock, ())),
            (types.FunctionType, _reduce_function),
            ((dict, list), _reduce_container),
        )

    def persistent_id(self, obj: Any) -> tuple[str, ...] | None:
        backend, by_region, by_account = self._kinds
        if isinstance(obj, backend):
            return ("backend", type(obj).__module__, type(obj).__qualname__, obj.account_id, obj.region_name)
        if isinstance(obj, by_region):
            return ("account", obj.backend.__module__, obj.backend.__qualname__, obj.account_id)
        if isinstance(obj, by_account):
            return ("service", obj.backend.__module__, obj.backend.__qualname__)
        return None

    def reducer_override(self, obj: Any) -> Any:
        for kind, reduce in self._reduces:
            if isinstance(obj, kind):
                return reduce(obj)
        if type(obj).__module__.startswith("cryptography."):
            return _reduce_key(obj)
        return NotImplemented

    def _reduce_object(self, key: Any) -> Any:
        """Save an S3 object with the name of the file for its contents. moto never changes an object's contents."""
        state = {name: value for name, value in vars(key).items() if name not in _BUFFER_FIELDS}
        if key._value_buffer.closed:
            return _new_object, (type(key),), (state, None), None, None, _set_object
        name = vars(key).setdefault(_BODY, uuid.uuid4().hex)
        self._bodies[name] = key
        return _new_object, (type(key),), (state, name), None, None, _set_object


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, *, is_trial: bool) -> None:
        super().__init__(file)
        self._is_trial = is_trial

    def find_class(self, module: str, name: str) -> Any:
        found = RENAMED.get((module, name)) or super().find_class(*_MOVED.get((module, name), (module, name)))
        return passing(found) if self._is_trial and isinstance(found, type) else found

    def persistent_load(self, pid: Any) -> Any:
        kind, module, class_name, *place = pid
        found = importlib.import_module(module)
        backend: type = getattr(found, class_name)
        from moto.core.base_backend import BackendDict

        # The BackendDict is found by its backend class, because its name cannot be derived from the service's name.
        known = [one for one in vars(found).values() if isinstance(one, BackendDict) and one.backend is backend]
        by_account: Any = known[0]
        if kind == "service":
            return by_account
        by_region = by_account[place[0]]
        return by_region if kind == "account" else by_region[place[1]]


class _Reading(threading.local):
    """Folder with the contents of S3 objects. It is global, because `pickle` cannot pass it to `_set_object`."""

    objects: Path | None


_reading = _Reading()


def _new_object(cls: Any) -> Any:
    return cls.__new__(cls)


def _set_object(key: Any, saved: tuple[dict[str, Any], str | None]) -> None:
    state, name = saved
    value = b"" if name is None or _reading.objects is None else (_reading.objects / name).read_bytes()
    key.__setstate__({**state, "value": value})
    # moto has just set the size to the length of the contents. The saved size may differ, for example for a part of an
    # upload that is a range of another object.
    if "contentsize" in state:
        key.contentsize = state["contentsize"]
    if name is None:
        key._value_buffer.close()
    else:
        setattr(key, _BODY, name)


def _reduce_container(obj: Any) -> Any:
    """Save a dict or list of one of moto's classes. pickle would fill it by the class's methods, with side effects."""
    if not type(obj).__module__.startswith("moto.") or isinstance(obj, collections.OrderedDict):
        return NotImplemented
    items = list(list.__iter__(obj)) if isinstance(obj, list) else dict(dict.items(obj))
    state = (items, vars(obj), getattr(obj, "default_factory", None))
    return _new_object, (type(obj),), state, None, None, _set_container


def _set_container(found: Any, saved: tuple[Any, dict[str, Any], Any]) -> None:
    items, attributes, default_factory = saved
    if isinstance(found, list):
        list.extend(found, items)
    else:
        dict.update(found, items)
    if isinstance(found, collections.defaultdict):
        found.default_factory = default_factory
    found.__dict__.update(attributes)


def _new_lock() -> Any:
    return threading.Lock()


def _new_rlock() -> Any:
    return threading.RLock()


def _reduce_function(function: types.FunctionType) -> Any:
    """Save the byte code of a function that pickle cannot find by name. Only the same Python version can load it."""
    if "<" not in function.__qualname__:
        return NotImplemented
    cells = tuple(cell.cell_contents for cell in function.__closure__ or ())
    code = marshal.dumps(function.__code__)
    return _new_function, (function.__module__, code, function.__name__, function.__defaults__, cells)


def _new_function(
    module: str, code: bytes, name: str, defaults: tuple[Any, ...] | None, cells: tuple[Any, ...]
) -> types.FunctionType:
    names = vars(importlib.import_module(module))
    return types.FunctionType(
        marshal.loads(code), names, name, defaults, tuple(types.CellType(value) for value in cells)
    )


def _reduce_key(key: Any) -> Any:
    """Save a key of `cryptography` as DER."""
    from cryptography.hazmat.primitives import serialization as forms

    if hasattr(key, "private_bytes"):
        content = key.private_bytes(forms.Encoding.DER, forms.PrivateFormat.PKCS8, forms.NoEncryption())
        return _new_private_key, (content,)
    if hasattr(key, "public_bytes") and hasattr(key, "verify"):
        return _new_public_key, (key.public_bytes(forms.Encoding.DER, forms.PublicFormat.SubjectPublicKeyInfo),)
    return NotImplemented


def _new_private_key(content: bytes) -> Any:
    from cryptography.hazmat.primitives.serialization import load_der_private_key

    return load_der_private_key(content, None)


def _new_public_key(content: bytes) -> Any:
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    return load_der_public_key(content)
