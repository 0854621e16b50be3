"""Shared-memory regions of clients, registered by name (protocol: shared memory extensions).

The client creates and owns a region. The server maps it and never removes it.
"""

import resource
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from modserve.core.errors import Code, ModserveError, internal, invalid, not_found, unavailable, unsupported
from modserve.core.tensors.shared_memory import CudaRegion, RegionSlice, SystemRegion
from modserve.core.tensors.tensor import Buffer, Tensor

from .cuda import Cuda, CudaMemory
from .posix import PosixMemory

RESERVED_PREFIX = "triton_python_backend_shm_region_"
"""Key prefix of memory shared between a server and its own workers, which clients must not access."""

_MOST_REGIONS = 16384

_SIZE_MAX = 2**64 - 1

_DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."

_KINDS: dict[type, str] = {SystemRegion: "system", CudaRegion: "CUDA"}
R = TypeVar("R", bound=SystemRegion | CudaRegion)


class Memory(Protocol):
    """The bytes of a region. The caller has checked offsets and sizes against the size of the region."""

    def read(self, offset: int, size: int) -> Buffer:
        """Return a view if possible, otherwise a copy. Raises INVALID_ARG if the bytes no longer exist."""

    def write(self, offset: int, raw: Buffer) -> None:
        """Write `raw` at `offset`. Raises INVALID_ARG like `read`."""

    def close(self) -> None:
        """End the mapping. Existing views stay valid."""


@dataclass(slots=True, eq=False)
class _Registered:
    region: SystemRegion | CudaRegion
    memory: Memory
    users: int = 0
    leaving: bool = False
    """True if the region ends once no request uses it. New requests do not get it, so it ends even under steady use."""


class SharedMemory:
    """The registered regions of a server. Usable on any thread.

    Without `allowed`, nothing can be registered. `directory`: the system's directory of POSIX shared memory. Each
    region keeps a file open, so there are at most `most`: by default, half of the process's limit on open files.
    """

    def __init__(
        self,
        allowed: bool = False,
        *,
        directory: Path = Path("/dev/shm"),
        most: int | None = None,
        cuda: Cuda | None = None,
    ) -> None:
        self._allowed = allowed
        self._directory = directory
        self._most = _half_of_the_files() if most is None else most
        self._cuda = cuda or Cuda()
        self._regions: dict[tuple[str, str], _Registered] = {}
        """Regions by tenant and name: each tenant has its own names."""
        self.with_cuda = False
        """True once GPU memory has been registered: reading and writing may have to copy."""
        self._replaced = 0
        """Number of leaving regions with names that have been registered again."""
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"SharedMemory({sorted(name for _, name in self._regions)})"

    def check_may_register(self, kind: type[R], name: str) -> None:
        """Check the conditions that need only the name. Raises UNSUPPORTED or INVALID_ARG."""
        self._check_allowed()
        if not name:
            raise invalid(f"'region name' is necessary to register {_KINDS[kind].lower()} shared memory region")

    def register_system(self, region: SystemRegion) -> None:
        """Register a region. Raises UNSUPPORTED, ALREADY_EXISTS, INVALID_ARG if mapping fails, UNAVAILABLE if full."""
        key = region.key
        self.check_may_register(SystemRegion, region.name)
        if not key.strip("/"):
            raise invalid(f"cannot register shared memory region '{region.name}' - invalid shm key '{key}'")
        if key.lstrip("/").startswith(RESERVED_PREFIX):
            raise invalid(
                f"cannot register shared memory region '{region.name}' with key '{key}' as the key contains the "
                f"reserved prefix '{RESERVED_PREFIX}'"
            )
        with self._lock:
            self._check_free(region)
            self._put(_Registered(region, PosixMemory(self._directory, region)))

    def register_cuda(self, region: CudaRegion, handle: bytes) -> None:
        """Register GPU memory; `handle` is a ``cudaIpcMemHandle_t``. Raises like `register_system`."""
        self.check_may_register(CudaRegion, region.name)
        with self._lock:
            self._check_free(region)
        # Without the lock: the first call may take a second.
        memory = self._cuda.open(region, handle)
        try:
            with self._lock:
                self._check_free(region)
                self._put(_Registered(region, memory))
                self.with_cuda = True
        except BaseException:
            memory.close()
            raise

    def status(self, kind: type[R], name: str = "", tenant: str = "") -> list[R]:
        """Return a tenant's regions of a kind, sorted by name, or only the named one. Raises NOT_FOUND."""
        if not name:
            with self._lock:
                all_regions = [each.region for each in self._regions.values()]
            regions = [region for region in all_regions if isinstance(region, kind) and region.tenant == tenant]
            return sorted(regions, key=lambda region: region.name)
        registered = self._regions.get((tenant, name))
        if registered is None:
            raise not_found(f"Unable to find {_KINDS[kind].lower()} shared memory region: '{name}'")
        region = registered.region
        if not isinstance(region, kind):
            raise not_found(
                f"The region named '{name}' is registered as {_KINDS[type(region)]} shared memory, "
                f"not {_KINDS[kind]} shared memory"
            )
        return [region]

    def unregister(self, kind: type[R], name: str = "", tenant: str = "") -> None:
        """Unregister the tenant's named region, or all of the kind; regions in use end with the last request that uses
        them.

        An unknown name is not an error. Raises UNSUPPORTED.
        """
        self._check_allowed()
        idle: list[_Registered] = []
        with self._lock:
            for registered in [self._regions.get((tenant, name))] if name else list(self._regions.values()):
                if registered is None or registered.region.tenant != tenant:
                    continue
                if isinstance(registered.region, kind):
                    registered.leaving = True
                    if self._forget_if_idle(registered):
                        idle.append(registered)
        for registered in idle:  # without the lock: a GPU driver may be slow
            registered.memory.close()

    def lease(self, tenant: str = "") -> "SharedMemoryLease":
        """Return a lease of regions for one request of a tenant."""
        return SharedMemoryLease(self, tenant)

    def take(self, name: str, tenant: str = "") -> _Registered:
        """Add a user to a region. Raises NOT_FOUND."""
        with self._lock:
            registered = self._regions.get((tenant, name))
            if registered is None or registered.leaving:
                raise not_found(f"Unable to find shared memory region: '{name}'")
            registered.users += 1
            return registered

    def give_back(self, used: Iterable[_Registered]) -> None:
        """Remove a user from each region."""
        idle: list[_Registered] = []
        with self._lock:
            for registered in used:
                registered.users -= 1
                if self._forget_if_idle(registered):
                    idle.append(registered)
        for registered in idle:
            registered.memory.close()

    def _check_allowed(self) -> None:
        if not self._allowed:
            raise unsupported(_DISABLED)

    def _put(self, registered: _Registered) -> None:
        if (place := _place(registered.region)) in self._regions:
            self._replaced += 1
        self._regions[place] = registered

    def _check_free(self, region: SystemRegion | CudaRegion) -> None:
        name = region.name
        registered = self._regions.get(_place(region))
        if registered is not None and not registered.leaving:
            raise ModserveError(Code.ALREADY_EXISTS, f"shared memory region '{name}' already in manager")
        if len(self._regions) + self._replaced >= self._most:
            raise unavailable(
                f"failed to register shared memory region '{name}': there are {self._most} already, and no more may "
                "be registered until one is unregistered"
            )

    def _forget_if_idle(self, registered: _Registered) -> bool:
        """Remove a leaving region that no request uses. Return True if removed; the caller then closes its memory."""
        if not registered.leaving or registered.users:
            return False
        if self._regions.get(place := _place(registered.region)) is registered:
            del self._regions[place]
        else:
            self._replaced -= 1
        return True


@dataclass(slots=True, eq=False)
class SharedMemoryLease:
    """Implements `core.tensors.shared_memory.RegionLease`."""

    _registry: SharedMemory
    _tenant: str = ""
    _used: dict[str, _Registered] | None = None

    def read(self, place: RegionSlice) -> Buffer:
        return self._take(place).memory.read(place.offset, place.byte_size)

    def reserve(self, place: RegionSlice) -> None:
        self._take(place)

    def write(self, place: RegionSlice, raw: Buffer) -> None:
        used = self._used
        if used is None or place.region not in used:
            raise internal(f"shared memory region '{place.region}' was not reserved: this is a bug")
        used[place.region].memory.write(place.offset, raw)

    def copy(self, place: RegionSlice, tensor: Tensor) -> bool:
        used = self._used
        memory = None if used is None or place.region not in used else used[place.region].memory
        return isinstance(memory, CudaMemory) and memory.copy(place.offset, tensor)

    def release(self) -> None:
        if self._used is not None:
            used, self._used = self._used, None
            self._registry.give_back(used.values())

    def _take(self, place: RegionSlice) -> _Registered:
        """Return the region of a place inside it. The lease takes each region once, for all its tensors."""
        if self._used is None:
            self._used = {}
        registered = self._used.get(place.region)
        if registered is None:
            registered = self._used[place.region] = self._registry.take(place.region, self._tenant)
        size = registered.region.byte_size
        if not 0 <= place.offset < size:
            raise invalid(f"Invalid offset for shared memory region: '{place.region}'")
        byte_size = place.byte_size
        if byte_size < 0:  # gRPC accepts it; Triton reads it as an unsigned number
            byte_size += 2**64
        if byte_size > _SIZE_MAX - place.offset:
            raise invalid(
                f"Integer overflow detected: byte_size ({byte_size}) + offset ({place.offset}) exceeds maximum value "
                f"({_SIZE_MAX}) for region '{place.region}'"
            )
        if not 0 <= byte_size <= size - place.offset:
            raise invalid(f"Invalid offset + byte size for shared memory region: '{place.region}'")
        return registered


def _place(region: SystemRegion | CudaRegion) -> tuple[str, str]:
    return region.tenant, region.name


def _half_of_the_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_REGIONS if soft == resource.RLIM_INFINITY else min(_MOST_REGIONS, soft // 2)
