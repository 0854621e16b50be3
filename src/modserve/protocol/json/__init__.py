"""JSON: parsing, tensors from and to nested lists, messages as Triton writes them."""
