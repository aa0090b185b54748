"""Measures prepacking when ONNX Runtime loads a model from an optimised copy: times and private memory, with and
without.

Prepacking means that ONNX Runtime copies weights into the layout that its kernels read fastest, when it loads a model.
Each model is loaded in a separate process, several times; the table shows medians. There are two models: one of large
matrix products (three of 4096 x 4096, 192 MiB), and ResNet-18 at half its width, which is nearly all convolutions (11
MiB).

    python -m benchmarks.prepacking
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROUNDS = 7
SIDE = 4096
EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "multi_model"
LOAD = """
import json, sys, time
import numpy, onnxruntime
from thawd import models

def private_mib():
    fields = dict(line.split(None, 1) for line in open("/proc/self/smaps_rollup").read().splitlines()[1:])
    return (int(fields["Private_Dirty:"].split()[0])) / 1024

model = models.open("file:" + sys.argv[1], cache=models.Cache(sys.argv[2]))
before = private_mib()
loaded = models.load_onnx(model, prepack=sys.argv[3] == "True")
[given] = loaded.value.get_inputs()
feed = {given.name: numpy.zeros(given.shape, numpy.uint8 if "uint8" in given.type else numpy.float32)}
runs = []
for _ in range(20):
    begun_s = time.perf_counter()
    loaded.value.run(None, feed)
    runs.append((time.perf_counter() - begun_s) * 1000)
print(json.dumps([loaded.steps[-1].ms, runs[0], sorted(runs)[10], private_mib() - before]))
"""


def matrices(path: Path) -> None:
    """Make a model of three large matrix products."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(random.standard_normal((SIDE, SIDE), np.float32) / np.float32(64), f"w{n}")
        for n in range(3)
    ]
    names = ["x", "a", "b", "y"]
    nodes = [helper.make_node("MatMul", [names[n], f"w{n}"], [names[n + 1]]) for n in range(3)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, SIDE]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "matrices", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)
    path.write_bytes(model.SerializeToString())


def main() -> int:
    """Print a table."""
    with tempfile.TemporaryDirectory(prefix="thawd-prepacking-") as name:
        folder = Path(name)
        matrices(folder / "matrices.onnx")
        subprocess.run([sys.executable, EXAMPLE / "make_models.py", folder, "--count", "1"], check=True)
        print("| model | prepacked | session | first run | a later run | private memory |\n|---|---|---|---|---|---|")
        for model in ("matrices", "model-000"):
            for prepack in (False, True):
                command = [sys.executable, "-c", LOAD, folder / f"{model}.onnx", folder / "cache", str(prepack)]
                done = [subprocess.run(command, check=True, capture_output=True).stdout for _ in range(ROUNDS + 1)]
                columns = zip(*(json.loads(output) for output in done[1:]), strict=True)
                session, first, later, private = map(statistics.median, columns)
                print(
                    f"| {model} | {'yes' if prepack else 'no'} | {session:.1f} ms | {first:.1f} ms | {later:.1f} ms "
                    f"| {private:.0f} MiB |"
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
