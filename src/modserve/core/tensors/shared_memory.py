"""Tensors in memory that a client shares: where they are, and how one request gets at them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from .tensor import Buffer, Tensor


@dataclass(frozen=True, slots=True)
class RegionSlice:
    """Place of a tensor's raw data: `byte_size` bytes from `offset` of a registered region, as in the request."""

    region: str
    offset: int
    byte_size: int


@dataclass(frozen=True, slots=True)
class SystemRegion:
    """A registered region of system memory: `byte_size` bytes from `offset` of the POSIX shared memory `key`."""

    name: str
    key: str
    offset: int
    byte_size: int
    tenant: str = ""
    """Tenant that owns the region and may use its name; empty if the server knows no tenants."""


@dataclass(frozen=True, slots=True)
class CudaRegion:
    """A registered region of a GPU's memory."""

    name: str
    device_id: int
    byte_size: int
    tenant: str = ""


class RegionLease(Protocol):
    """Regions that one request uses; none is removed before `release`. Usable from one thread at a time."""

    def read(self, place: RegionSlice) -> Buffer:
        """Return the bytes at `place`: for system memory a read-only view, which the client may still write to.

        Raises NOT_FOUND for an unknown region, INVALID_ARG for a place that is not inside it.
        """

    def reserve(self, place: RegionSlice) -> None:
        """Keep the region of `place` for a `write`. Raises as `read` does."""

    def write(self, place: RegionSlice, raw: Buffer) -> None:
        """Write `raw`, at most `byte_size` bytes, to a reserved place. Raises INVALID_ARG if its memory is lost."""

    def copy(self, place: RegionSlice, tensor: Tensor) -> bool:
        """Copy a tensor to a reserved place within their device. Return False if they are on different devices."""

    def release(self) -> None:
        """Release the regions at the end of the request. Later calls do nothing."""


LeaseFactory: TypeAlias = Callable[[], RegionLease]
"""Factory of a request's only lease, made on first use; requests without shared memory need none."""
