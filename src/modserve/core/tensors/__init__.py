"""Tensors: their datatypes, their values as bytes and arrays, and where these are."""
