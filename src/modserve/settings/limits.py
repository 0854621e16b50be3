"""Limits for work on the event loop and for waiting work. They are no options, but constants for all front ends."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoopLimits:
    """How much may be done on the event loop at once, and how much of it may wait. More goes to a thread, or waits."""

    json: int = 256 * 1024
    """Bytes of JSON that are decoded, and bytes that a compressed message may become."""
    compressed: int = 16 * 1024
    """Bytes that are inflated, or compressed."""
    texts: int = 256 * 1024
    """Bytes of a BYTES tensor whose elements are counted, or of any tensor whose digest is computed."""
    elements: int = 32 * 1024
    """Elements that are ranked, or read or written one by one."""
    message: int = 1024 * 1024
    """Bytes of a protobuf message that are parsed, or copied into one."""
    split: int = 64 * 1024
    """Bytes of a ModelInferRequest that protobuf reads as a whole; longer ones are taken apart first."""
    part: int = 256 * 1024
    """Bytes of a stream's message that are sent at once: a slow reader is seen to read, one that has stopped is not."""
    parts: int = 32
    """Parts of one prediction that wait or run at a time; more would crowd out those of other clients."""
    outstanding: int = 1024
    """Requests of a gRPC stream that are read and not settled. Above that none is read, and the client waits."""
    outstanding_bytes: int = 64 * 1024 * 1024
    """The same for the sum of their sizes. One request may be larger, and is then the only one."""
