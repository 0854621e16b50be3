"""The ``pytorch`` backend: TorchScript, exported and compiled programs, and modules written in Python, on PyTorch."""
