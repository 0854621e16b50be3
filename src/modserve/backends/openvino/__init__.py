"""The ``openvino`` backend: IR, ONNX, TensorFlow, TensorFlow Lite and PaddlePaddle models on OpenVINO."""
