"""Makes models for this example: ResNet-18 as ONNX, each with its own weights.

Architecture and size are real (11.2 million weights, 43 MB, 1.8 billion multiplications); the weights are random. The
example shows how models are loaded into memory, which does not depend on the values of their weights. A model of half
the width has a quarter of the weights and takes a quarter of the computation.

    python examples/multi_model/make_models.py FOLDER --count 100
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

CLASSES = 10
# Old enough for every ONNX Runtime since 1.6.
OPSET = 13


class Network:
    """A graph under construction. Its weights are drawn as they are needed."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def constant(self, array: npt.NDArray[np.generic]) -> str:
        """Add a weight and return its name."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def add(self, kind: str, *inputs: str, **attributes: object) -> str:
        """Add a node and return the name of its output."""
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def conv(self, value: str, channels: tuple[int, int], *, kernel: int, stride: int = 1) -> str:
        """Add a convolution with a bias, as it is after batch normalisation is folded into it."""
        before, after = channels
        scale = np.sqrt(2 / (before * kernel * kernel))
        weight = self.random.standard_normal((after, before, kernel, kernel), np.float32) * np.float32(scale)
        bias = self.random.standard_normal(after, np.float32) * np.float32(0.1)
        pads = [kernel // 2] * 4
        names = self.constant(weight), self.constant(bias)
        return self.add("Conv", value, *names, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads)

    def block(self, value: str, channels: tuple[int, int], stride: int) -> str:
        """Add two convolutions and the shortcut around them."""
        before, after = channels
        inner = self.add("Relu", self.conv(value, (before, after), kernel=3, stride=stride))
        inner = self.conv(inner, (after, after), kernel=3)
        if stride != 1 or before != after:
            value = self.conv(value, (before, after), kernel=1, stride=stride)
        return self.add("Relu", self.add("Mul", self.add("Add", inner, value), self.constant(np.float32([0.7]))))


def resnet(seed: int, *, width: int = 64, side: int = 224) -> onnx.ModelProto:
    """Make the model: input ``image`` (1, 64, 64, 3), uint8; output ``scores`` (1, 10), float32, with sum 1."""
    net = Network(seed)
    value = net.add("Transpose", net.add("Cast", "image", to=TensorProto.FLOAT), perm=[0, 3, 1, 2])
    value = net.add("Mul", value, net.constant(np.float32([1 / 255])))
    sizes = net.constant(np.int64([1, 3, side, side]))
    value = net.add("Resize", value, "", "", sizes, mode="linear", coordinate_transformation_mode="half_pixel")
    value = net.add("Relu", net.conv(value, (3, width), kernel=7, stride=2))
    value = net.add("MaxPool", value, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    before = width
    for stage in range(4):
        after = width << stage
        value = net.block(value, (before, after), 1 if stage == 0 else 2)
        value = net.block(value, (after, after), 1)
        before = after
    value = net.add("Flatten", net.add("GlobalAveragePool", value))
    weight = net.random.standard_normal((before, CLASSES), np.float32) * np.float32(np.sqrt(1 / before))
    value = net.add("MatMul", value, net.constant(weight))
    net.nodes.append(helper.make_node("Softmax", [value], ["scores"], axis=1))
    graph = helper.make_graph(
        net.nodes,
        "resnet",
        [helper.make_tensor_value_info("image", TensorProto.UINT8, [1, 64, 64, 3])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, CLASSES])],
        net.weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=7)


def write(path: Path, seed: int, *, width: int, side: int) -> None:
    """Put a model into the store completely or not at all: a file with a name that begins with a dot is not an
    object."""
    staged = path.with_name(f".{path.name}")
    staged.write_bytes(resnet(seed, width=width, side=side).SerializeToString())
    staged.replace(path)


def main() -> int:
    """Make the models that are missing or have another size."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--side", type=int, default=224)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    size = resnet(0, width=given.width, side=given.side).ByteSize()
    for number in range(given.count):
        path = given.folder / f"model-{number:03}.onnx"
        if not path.exists() or path.stat().st_size != size:
            write(path, number, width=given.width, side=given.side)
    return 0


if __name__ == "__main__":
    sys.exit(main())
