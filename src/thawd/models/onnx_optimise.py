"""Program that optimises an ONNX model for this machine, and writes the result with a separate file of weights.

``onnx_optimise.py MODEL FOLDER PATH...`` reads MODEL and writes into FOLDER. Each PATH is added to ``sys.path``.

The program runs in a process of its own. If the process that loads the model optimised it, the memory that optimising
needs would become part of the snapshot.
"""

from __future__ import annotations

import os
import sys

_SMALLEST_OUTSIDE_BYTES = "1024"  # weights of at least this size go to ``weights.bin``, which can be mapped


def main(model: str, folder: str) -> None:
    """Write ``model.onnx`` and ``weights.bin`` into `folder`."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # errors only: the warning that the result is only for this machine is not needed
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath = os.path.join(folder, "model.onnx")
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
    options.add_session_config_entry(
        "session.optimized_model_external_initializers_min_size_in_bytes", _SMALLEST_OUTSIDE_BYTES
    )
    onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    sys.path[:0] = sys.argv[3:]
    main(sys.argv[1], sys.argv[2])
