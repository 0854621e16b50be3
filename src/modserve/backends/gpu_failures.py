"""Failures of GPUs in the texts of engines: a GPU that is full, and one that a process can no longer use."""

import re

from .api import InstanceLostError

_STICKY = re.compile(
    r"CUDA (?:error|failure \d+): (?:an illegal memory access|the launch timed out|device-side assert|hardware stack "
    r"error|an illegal instruction|misaligned address|operation not supported on global/shared address space|invalid "
    r"program counter|unspecified launch failure|uncorrectable|context is destroyed|unknown error)[^\n;]*"
)
"""Errors after which "the process must be terminated and relaunched" (CUDA runtime API, ``cudaError_t``).

PyTorch writes "CUDA error: …", ONNX Runtime "CUDA failure 700: … ; GPU=0 ; …".
"""
_FULL = re.compile(r"CUDA (?:error|failure 2): out of memory|\bCU[A-Z]+_STATUS_ALLOC_FAILED")


def find_loss(text: str) -> InstanceLostError | None:
    """Return the failure that `text` reports, if the GPU is unusable afterwards; else None."""
    match = _STICKY.search(text)
    if match is None:
        return None
    return InstanceLostError(
        f"the GPU has failed: {match[0].strip()}; CUDA runs nothing more in this process, so the server must be "
        "started again"
    )


def is_full(text: str) -> bool:
    """Return True if `text` reports insufficient GPU memory, from CUDA or one of its libraries."""
    return _FULL.search(text) is not None
