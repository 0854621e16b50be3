"""Content that only gRPC carries: the messages of ModelInfer and ModelStreamInfer."""
