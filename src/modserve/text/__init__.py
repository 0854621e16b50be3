"""Text as a surface over models of tensors: what clients send and get as text, without anything of HTTP."""
