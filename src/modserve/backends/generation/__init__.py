"""What backends of language models share: the tensors of their models, and the program of their workers."""
