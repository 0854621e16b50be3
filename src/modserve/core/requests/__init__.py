"""Inference requests and responses: as clients send them, checked against a model, and in flight."""
