"""Makes Inception V3 and ResNet-50 v2 as ONNX files: the real architectures with random weights, without a download.

A network with random weights takes as long to load and to run as a trained one, but its answers have no meaning. The
last layer is fitted so that different pictures get different classes. If all pictures got the same class, the examples
could not check that each answer belongs to its picture.

    inception_v3(path)             23,834,568 parameters, input 1x3x299x299
    resnet50_v2(path)              25,549,480 parameters, input 1x3x224x224

Both take `width` and `size` for small variants of the same shape, which the tests use.
Sources: "Rethinking the Inception Architecture for Computer Vision"; "Identity Mappings in Deep Residual Networks".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pictures
from onnx import TensorProto, helper, numpy_helper

CLASSES = 1000
OPSET = 17
IR_VERSION = 8
_FITTED_ON = 16
_SHARPNESS = 3.0


class Network:
    """A graph under construction. Its methods take and return names of values.

    Args:
        size: width and height of the input pictures, pixels.
        width: factor by which the number of each layer's channels is multiplied.
    """

    def __init__(self, size: int, width: float) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.parameters = 0
        self._size = size
        self._width = width
        self._random = np.random.default_rng(1)
        self._channels = {"pixels": 3}

    def conv(self, x: str, channels: int, kernel: Any, *, stride: int = 1, pad: Any = 0) -> str:
        """Add a convolution without bias, with weights drawn so that values keep their size (He et al., 2015)."""
        channels = max(4, round(channels * self._width))
        height, width = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        down, right = pad if isinstance(pad, tuple) else (pad, pad)
        shape = (channels, self._channels[x], height, width)
        drawn = self._random.standard_normal(shape, dtype=np.float32) * np.float32((2 / np.prod(shape[1:])) ** 0.5)
        return self._node(
            "Conv", [x, self._weight(drawn)], channels, strides=[stride] * 2, pads=[down, right, down, right]
        )

    def norm(self, x: str, *, trained: bool = True) -> str:
        """Add batch normalisation. Its scale and offset count as parameters if they are `trained`."""
        ones, zeros = (np.full(self._channels[x], value, np.float32) for value in (1, 0))
        scales = [self._weight(array, is_parameter=trained) for array in (ones, zeros)]
        moments = [self._weight(array, is_parameter=False) for array in (zeros, ones)]
        return self._node("BatchNormalization", [x, *scales, *moments], self._channels[x], epsilon=1e-3)

    def relu(self, x: str) -> str:
        """Add a rectifier."""
        return self._node("Relu", [x], self._channels[x])

    def unit(self, x: str, channels: int, kernel: Any, *, stride: int = 1, pad: Any = 0) -> str:
        """Add convolution, normalisation and rectifier."""
        return self.relu(self.norm(self.conv(x, channels, kernel, stride=stride, pad=pad)))

    def most(self, x: str, *, pad: int = 0) -> str:
        """Add max pooling of 3x3 with stride 2."""
        return self._node("MaxPool", [x], self._channels[x], kernel_shape=[3, 3], strides=[2, 2], pads=[pad] * 4)

    def mean(self, x: str) -> str:
        """Add average pooling of 3x3."""
        return self._node("AveragePool", [x], self._channels[x], kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4)

    def concat(self, *branches: str) -> str:
        """Concatenate the channels of all `branches`."""
        return self._node("Concat", list(branches), sum(self._channels[x] for x in branches), axis=1)

    def add(self, x: str, y: str) -> str:
        """Add two values."""
        return self._node("Add", [x, y], self._channels[x])

    def write(self, x: str, path: Path) -> None:
        """Pool `x`, add a fitted classifier with `CLASSES` classes and write the model to `path` with a rename."""
        features = self._node("GlobalAveragePool", [x], self._channels[x])
        flat = self._node("Flatten", [features], self._channels[x])
        weights, bias = self._classifier(self._run(flat))
        names = [self._weight(weights), self._weight(bias)]
        self.nodes.append(helper.make_node("Gemm", [flat, *names], ["scores"], name="classifier", transB=1))
        partial = path.with_suffix(".partial")
        partial.write_bytes(self._model("scores", CLASSES).SerializeToString())
        partial.replace(path)

    def _classifier(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return weights and bias of the last layer. The class depends on how the features deviate from their means."""
        spread = features.std(axis=0) + 1e-6 * np.abs(features).max() + 1e-12
        drawn = self._random.standard_normal((CLASSES, features.shape[1]), dtype=np.float32)
        weights = (drawn * _SHARPNESS / spread / features.shape[1] ** 0.5).astype(np.float32)
        return weights, -(weights @ features.mean(axis=0)).astype(np.float32)

    def _run(self, output: str) -> np.ndarray:
        import onnxruntime

        model = self._model(output, self._channels[output]).SerializeToString()
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        inputs = [pictures.pixels(pictures.picture(number), self._size) for number in range(_FITTED_ON)]
        return np.concatenate([session.run([output], {"pixels": one})[0] for one in inputs])

    def _model(self, output: str, width: int) -> onnx.ModelProto:
        shape = [1, 3, self._size, self._size]
        ends = [
            helper.make_tensor_value_info("pixels", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info(output, TensorProto.FLOAT, [1, width]),
        ]
        graph = helper.make_graph(self.nodes, "network", ends[:1], ends[1:], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)

    def _weight(self, array: np.ndarray, *, is_parameter: bool = True) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        self.parameters += array.size if is_parameter else 0
        return name

    def _node(self, kind: str, inputs: list[str], channels: int, **attributes: Any) -> str:
        name = f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        self._channels[name] = channels
        return name


def inception_v3(path: Path, *, size: int = 299, width: float = 1.0) -> int:
    """Write Inception V3 to `path` and return the number of its parameters. `size` is at least 75."""
    net = Network(size, width)
    x = net.unit("pixels", 32, 3, stride=2)
    x = net.unit(x, 32, 3)
    x = net.most(net.unit(x, 64, 3, pad=1))
    x = net.unit(x, 80, 1)
    x = net.most(net.unit(x, 192, 3))
    for pooled in (32, 64, 64):
        x = _inception_a(net, x, pooled)
    x = _inception_b(net, x)
    for narrow in (128, 160, 160, 192):
        x = _inception_c(net, x, narrow)
    x = _inception_d(net, x)
    for _ in range(2):
        x = _inception_e(net, x)
    net.write(x, path)
    return net.parameters


def _inception_a(net: Network, x: str, pooled: int) -> str:
    five = net.unit(net.unit(x, 48, 1), 64, 5, pad=2)
    double = net.unit(net.unit(net.unit(x, 64, 1), 96, 3, pad=1), 96, 3, pad=1)
    return net.concat(net.unit(x, 64, 1), five, double, net.unit(net.mean(x), pooled, 1))


def _inception_b(net: Network, x: str) -> str:
    double = net.unit(net.unit(net.unit(x, 64, 1), 96, 3, pad=1), 96, 3, stride=2)
    return net.concat(net.unit(x, 384, 3, stride=2), double, net.most(x))


def _inception_c(net: Network, x: str, narrow: int) -> str:
    wide, high = ((1, 7), (0, 3)), ((7, 1), (3, 0))
    seven, double = net.unit(x, narrow, 1), net.unit(x, narrow, 1)
    for channels, (kernel, pad) in ((narrow, wide), (192, high)):
        seven = net.unit(seven, channels, kernel, pad=pad)
    for channels, (kernel, pad) in ((narrow, high), (narrow, wide), (narrow, high), (192, wide)):
        double = net.unit(double, channels, kernel, pad=pad)
    return net.concat(net.unit(x, 192, 1), seven, double, net.unit(net.mean(x), 192, 1))


def _inception_d(net: Network, x: str) -> str:
    three = net.unit(net.unit(x, 192, 1), 320, 3, stride=2)
    seven = net.unit(net.unit(net.unit(x, 192, 1), 192, (1, 7), pad=(0, 3)), 192, (7, 1), pad=(3, 0))
    return net.concat(three, net.unit(seven, 192, 3, stride=2), net.most(x))


def _inception_e(net: Network, x: str) -> str:
    three, double = net.unit(x, 384, 1), net.unit(net.unit(x, 448, 1), 384, 3, pad=1)
    split = [
        net.unit(branch, 384, kernel, pad=pad)
        for branch in (three, double)
        for kernel, pad in (((1, 3), (0, 1)), ((3, 1), (1, 0)))
    ]
    return net.concat(net.unit(x, 320, 1), *split, net.unit(net.mean(x), 192, 1))


def resnet50_v2(path: Path, *, size: int = 224, width: float = 1.0) -> int:
    """Write ResNet-50 v2 (normalised before each convolution) to `path` and return the number of its parameters."""
    net = Network(size, width)
    x = net.conv(net.norm("pixels", trained=False), 64, 7, stride=2, pad=3)
    x = net.most(net.relu(net.norm(x)), pad=1)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            x = _bottleneck(net, x, 256 << stage, stride=2 if stage and not block else 1, is_first=not block)
    net.write(net.relu(net.norm(x)), path)
    return net.parameters


def _bottleneck(net: Network, x: str, channels: int, *, stride: int, is_first: bool) -> str:
    ready = net.relu(net.norm(x))
    narrow = net.relu(net.norm(net.conv(ready, channels // 4, 1)))
    narrow = net.relu(net.norm(net.conv(narrow, channels // 4, 3, stride=stride, pad=1)))
    return net.add(net.conv(narrow, channels, 1), net.conv(ready, channels, 1, stride=stride) if is_first else x)
