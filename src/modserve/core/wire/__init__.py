"""Primitives of wire formats: protobuf's fields, BYTES elements, and gRPC's status codes."""
