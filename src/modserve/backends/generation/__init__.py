"""Shared parts of the backends of language models: the models' tensors, and the program of their workers."""
