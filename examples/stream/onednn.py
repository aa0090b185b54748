"""Runs the network of an ONNX file with torch, with oneDNN's convolutions or without, and prints the time of each step.

    python onednn.py MODEL on|off

It prints JSON: milliseconds for the import, the load, the first run, and the median of warm runs. It fails if the
scores differ from those of ONNX Runtime.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

WARM = 10


def main(path: str, setting: str) -> None:
    """Measure the steps and print their times."""
    marks = [time.perf_counter()]
    import torch

    torch.set_num_threads(1)
    torch.backends.mkldnn.enabled = setting == "on"
    marks.append(time.perf_counter())
    import onnx

    graph = onnx.load(path).graph
    weights = {one.name: torch.from_numpy(onnx.numpy_helper.to_array(one).copy()) for one in graph.initializer}
    steps = [(node.op_type, list(node.input), node.output[0], attributes(node)) for node in graph.node]
    marks.append(time.perf_counter())
    import pictures

    size = graph.input[0].type.tensor_type.shape.dim[2].dim_value
    pixels = pictures.pixels(pictures.picture(1), size)
    times = []
    with torch.inference_mode():
        for _ in range(1 + WARM):
            begun_s = time.perf_counter()
            scores = forward(steps, weights, torch.from_numpy(pixels))
            times.append((time.perf_counter() - begun_s) * 1000)
    check(path, pixels, scores)
    told = {
        "import_ms": (marks[1] - marks[0]) * 1000,
        "load_ms": (marks[2] - marks[1]) * 1000,
        "first_ms": times[0],
        "warm_ms": statistics.median(times[1:]),
    }
    print(json.dumps(told))


def attributes(node):
    """Return the attributes of a node, by name."""
    import onnx

    return {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}


def forward(steps, weights, pixels):
    """Compute the graph and return its last value."""
    import torch.nn.functional as f

    held = {**weights, "pixels": pixels}
    for kind, names, output, settings in steps:
        x, *others = (held[name] for name in names)
        if kind == "Conv":
            made = f.conv2d(x, others[0], stride=settings["strides"], padding=settings["pads"][:2])
        elif kind == "BatchNormalization":
            scale, offset, mean, variance = others
            made = f.batch_norm(x, mean, variance, scale, offset, eps=settings["epsilon"])
        elif kind == "MaxPool":
            made = f.max_pool2d(x, settings["kernel_shape"], settings["strides"], settings["pads"][:2])
        elif kind == "Gemm":
            made = f.linear(x, *others)
        else:
            made = {
                "Relu": lambda x: x.relu(),
                "Add": lambda x, y: x + y,
                "GlobalAveragePool": lambda x: x.mean((2, 3), keepdim=True),
                "Flatten": lambda x: x.flatten(1),
            }[kind](x, *others)
        held[output] = made
    return held[output]


def check(path, pixels, scores):
    """Compare the scores with those of ONNX Runtime."""
    import numpy
    import onnxruntime

    [expected] = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"pixels": pixels})
    if not numpy.allclose(scores.numpy(), expected, rtol=1e-3, atol=1e-2):
        sys.exit(f"torch and ONNX Runtime differ by {abs(scores.numpy() - expected).max()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
