"""What a thaw in the root of a container image costs, compared with a thaw without one.

What: the time from the HTTP request to its answer when the function has no execution environment and one is thawed, for
a function whose code is a container image and for one whose code is a folder. Both have the same handler, which does
nothing, and the same interpreter.

How: one server with both functions. The rounds of both take turns. Each round waits until no environment is left, then
sends one request. The image has the layout of Lambda's Python base image, and is made from this interpreter.

Why: the difference is the price of the namespaces and mounts, and of having no base.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests import image_roots

from benchmarks import machine, progress, serving, thawing
from benchmarks.report import AT_MOST, BenchmarkError, Figure
from thawd.oci.image_store import Images

TITLE = "container-images: a thaw in an image's root"

MOST_ADDED_MS = 1.5
ROUNDS = 21

CONFIGURATION = """
[functions.image]
image = "oci:{store}:noop:1"
idle_timeout_s = 0.5
prime = {{}}

[functions.folder]
handler = "app.handler"
code = "folder"
idle_timeout_s = 0.5
prime = {{}}
"""


def measure() -> Sequence[Figure]:
    """Measure how much longer a request waits for a thaw in a root.

    Raises:
        BenchmarkError: the environments were not thawed.
    """
    serving.BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-images-", dir=serving.BUILD) as folder:
        progress.step("make the image")
        store = Path(folder, "store")
        image_roots.add_image(Images(store), "noop:1", {"var/task/app.py": serving.NOOP})
        with serving.thawd(CONFIGURATION.format(store=store), {"folder/app.py": serving.NOOP}) as served:
            return _figures(served)


def _figures(served: serving.Served) -> Sequence[Figure]:
    expected = {}
    for function in ("image", "folder"):
        progress.step(f"{function}: wait for its snapshot")
        thawing.await_snapshot(served, function)
        expected[function] = serving.invoke(served, function, {})
    waits: dict[str, list[float]] = {"image": [], "folder": []}
    for _ in progress.rounds(ROUNDS, "round"):
        for function, found in waits.items():
            found.append(thawing.one_round(served, function, expected[function]).thawed_ms)
    for function in waits:
        starts = served.function(function)["starts"]
        if starts["thaw"]["count"] < ROUNDS:
            raise BenchmarkError(f"{ROUNDS} environments of {function} should have been thawed; there were {starts}")
    image_ms, folder_ms = (statistics.median(waits[function]) for function in ("image", "folder"))
    added_ms = statistics.median(image - folder for image, folder in zip(waits["image"], waits["folder"], strict=True))
    raw = f"{image_ms:.2f} ms against {folder_ms:.2f} ms"
    return [
        Figure("added by the root", added_ms, "ms", AT_MOST, MOST_ADDED_MS * machine.slowness(), raw),
        Figure("request that thaws, compared with one without a root", image_ms / folder_ms, "x", note=raw),
    ]
