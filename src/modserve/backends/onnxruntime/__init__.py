"""The ``onnxruntime`` backend: ONNX models on ONNX Runtime."""
