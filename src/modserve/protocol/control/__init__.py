"""The control plane and metadata, alike on both wires."""
