"""The ``onnxruntime`` backend: ONNX models on ONNX Runtime."""

import os

# Since 1.29 it reports models' names and more to its maker over the Internet unless this is set before the import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as onnxruntime

if not hasattr(onnxruntime, "InferenceSession"):
    raise ImportError(
        "files of ONNX Runtime are missing, perhaps because a distribution that shares them was "
        "uninstalled; reinstall it: pip install --force-reinstall --no-deps onnxruntime (or onnxruntime-gpu)"
    )

SILENT = 4
"""The severity from which ONNX Runtime writes to standard error itself. What fails comes as an exception, too."""

# Its own lines, in colours, would go past the server's log.
onnxruntime.set_default_logger_severity(SILENT)
