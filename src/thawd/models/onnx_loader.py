"""Loads ONNX models: optimises the graph once for this machine, and maps its weights from a separate file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from typing import Any, Dict, Optional, Tuple

from thawd.models.cache import CacheLease, key_of
from thawd.models.faults import ModelError, missing
from thawd.models.loaded import Loaded, Step, Stopwatch, mapped_note
from thawd.models.opening import Model

_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "onnx_optimise.py")
_FORM = "1"  # part of the key of each optimised copy in the cache; change it when copies are made in another way


def load_onnx(
    model: Model,
    *,
    name: str = "",
    threads: int = 1,
    optimise: bool = True,
    prepack: bool = True,
    config: Optional[Dict[str, str]] = None,
) -> Loaded:
    """Load an ONNX model as an ``InferenceSession`` on the CPU.

    Args:
        model: an ONNX file, or a folder that contains one.
        name: relative path of the file, if the folder contains several.
        threads: most threads that one run may use. With 1 the session has no threads of its own, and the process can
            be forked.
        optimise: load a copy that this version of ONNX Runtime has optimised for this machine's CPU, with mapped
            weights. The copy is made at the first load, in a separate process, and kept in the cache. False: the
            original file is loaded, and optimised in memory at each load.
        prepack: let ONNX Runtime's operators rearrange their weights in memory, as they do by default. This makes
            matrix products faster, but each load makes a private copy of those weights. False is for models that are
            often loaded and removed without a snapshot; docs/how-to/models.md has measurements.
        config: further entries of the session's configuration.

    Raises:
        ModelError: ONNX Runtime is missing or cannot load the model.
    """
    watch = Stopwatch(model)
    with watch.step("import onnxruntime"):
        try:
            import onnxruntime
        except ImportError:
            raise missing("ONNX Runtime", "pip install onnxruntime") from None
    path = _file_of(model, name)
    if optimise:
        with watch.step("optimise") as step:
            path = _optimised(model, path, onnxruntime.__version__, step)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_DISABLE_ALL if optimise else level.ORT_ENABLE_ALL
    entries = {"session.disable_prepacking": "0" if prepack else "1", **(config or {})}
    for entry in entries.items():
        options.add_session_config_entry(*entry)
    with watch.step("session") as step:
        session = _session(onnxruntime, model, path, options)
        step.note = f"{'prepacked' if prepack else 'not prepacked'}, {mapped_note(os.path.dirname(path))}"
    return Loaded(session, model, watch.steps)


def _session(onnxruntime: Any, model: Model, path: str, options: Any) -> Any:
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ModelError(f"{model.address}: ONNX Runtime {onnxruntime.__version__} cannot load it: {error}") from error


def _file_of(model: Model, name: str) -> str:
    if not os.path.isdir(model.path):
        return model.path
    found = [name] if name else sorted(entry for entry in os.listdir(model.path) if entry.endswith(".onnx"))
    if len(found) != 1:
        raise ModelError(
            f"{model.address} has {len(found)} files whose names end with .onnx; set `name` to the file to load"
        )
    return os.path.join(model.path, found[0])


def _optimised(model: Model, path: str, version: str, step: Step) -> str:
    """Return the path of the optimised copy in the cache, and make the copy if it is missing.

    The copy stays in the cache while `model` is open.
    """
    inner = "" if path == model.path else os.path.basename(path)
    key = key_of(_FORM, model.sha256 or model.identity, inner, version, *_cpu())
    for _ in range(3):
        use: Optional[CacheLease] = model.cache.use("derived", key)
        if use is not None:
            model.hold(use)
            step.note = step.note or "already in the cache"
            return os.path.join(model.cache.place("derived", key), "model.onnx")
        step.note = "made now"
        _make(model, path, key)
    raise ModelError(
        f"{model.address}: its optimised copy cannot be kept in the cache {model.cache.folder}: the copy was made "
        "three times and removed each time. Check whether another program deletes files there"
    )


def _make(model: Model, path: str, key: str) -> None:
    made = model.cache.place("derived", key)
    model.cache.make_room(model.size)
    staged = tempfile.mkdtemp(prefix=".new-", dir=os.path.dirname(made))
    os.chmod(staged, 0o755)
    command = [sys.executable, _PROGRAM, path, staged, *sys.path]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0 or not os.path.exists(os.path.join(staged, "model.onnx")):
            last = (done.stdout.strip() or f"status {done.returncode}").splitlines()[-1]
            raise ModelError(f"{model.address}: ONNX Runtime cannot optimise it: {last}. Load it with optimise=False")
        try:
            os.rename(staged, made)
        except OSError:  # another process has made the copy in the meantime
            pass
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _cpu() -> Tuple[str, ...]:
    """The lines of /proc/cpuinfo with the CPU's manufacturer, type and features, on which an optimised copy depends."""
    try:
        with open("/proc/cpuinfo") as file:
            lines = file.read().partition("\n\n")[0].splitlines()
    except OSError:
        lines = []
    return tuple(
        line for line in lines if line.startswith(("vendor_id", "model name", "flags", "Features", "CPU part"))
    )
