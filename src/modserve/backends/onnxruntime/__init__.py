"""The ``onnxruntime`` backend: ONNX models on ONNX Runtime."""

import os

# Since 1.29 it reports models' names and more to its maker over the Internet unless this is set before the import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime

if not hasattr(onnxruntime, "InferenceSession"):
    raise ImportError(
        "the files of ONNX Runtime are not all there, as after one of two distributions that share them was "
        "uninstalled: pip install --force-reinstall --no-deps onnxruntime (or onnxruntime-gpu)"
    )
