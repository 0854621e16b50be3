"""Content that only HTTP carries: infer, generate and their streams, KServe v1."""
