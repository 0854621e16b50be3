"""Models that take text: what the files next to them say, and the way from texts to their tensors and back.

Pure of any protocol. A request of text becomes requests for a model's own tensors, above everything that runs them.
"""
