"""The ``openvino_genai`` backend: language models on OpenVINO GenAI, with continuous batching, in a worker process."""
