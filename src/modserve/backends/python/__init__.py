"""The ``python`` backend: runs the model.py files of Triton's python backend, each instance in a process of its own."""
