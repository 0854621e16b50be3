"""Response cache in a store shared by several servers, such as a Redis.

If the store is unreachable, slow or full, nothing is stored and requests run. A request waits for the store for a
limited time, and not at all after several consecutive failures. Responses are written in the background.

Redis as the store, by the library redis (extra `redis`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

from modserve.core.configuration.cache_settings import RedisSettings
from modserve.core.errors import unavailable
from modserve.core.pip_command import pip_install
from modserve.core.requests.response import InferenceResponse

from .breaker import Breaker
from .response_cache import UnusableError, from_bytes, raw_size, to_bytes

_log = logging.getLogger(__name__)

_PREFIX = "modserve:1"
"""Prefix of all keys, with the version of their format."""
_LONG = 64 * 1024
"""Size in bytes from which a response is encoded and decoded on a thread, as its digest takes time."""
_MOST_LOOKUPS = 256
"""Maximum concurrent lookups; further requests run without one."""
_MOST_WRITES = 64
_MOST_WRITTEN = 64 * 1024 * 1024
"""Maximum size in bytes of unwritten responses; further ones are not stored."""
_CONNECT_S = 1.0
_WRITE_S = 5.0
_PURGE_S = 60.0
"""Time limit of a purge in seconds; it may take long, because no request waits for it."""

T = TypeVar("T")


class CacheStoreError(Exception):
    """A failed operation of a store. The text has the reason."""


class Store(Protocol):
    """External storage of bytes by key. Methods except `__str__` raise `CacheStoreError`; calls may be cancelled."""

    def __str__(self) -> str:
        """Return the store's address for the log, without secrets."""

    async def get(self, key: str) -> bytes | None: ...

    async def set(self, key: str, value: bytes, ttl_s: float) -> None:
        """Store `value`, for at most `ttl_s` seconds; 0 for no limit."""

    async def purge(self, prefix: str) -> int:
        """Remove all keys with this prefix in small steps; return their number."""

    async def close(self) -> None: ...


class SharedCache:
    """Responses of all models of this server in a store. `timeout_s`: maximum wait of a request for it.

    Responses longer than `longest` bytes (0: no limit) are not stored, and others for `ttl_s` at most (0: no limit).
    """

    def __init__(
        self,
        store: Store,
        timeout_s: float,
        ttl_s: float = 0,
        longest: int = 0,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.ending = False
        """True while the server ends: its entries stay for other servers."""
        self._store = store
        self._timeout_s = timeout_s
        self._ttl_s = ttl_s
        self._longest = longest
        self._reading = Breaker(f"response cache {store}", "requests run without it", self._look, sleep)
        self._writing = Breaker(f"response cache {store}", "no responses are kept", self._try, sleep)
        self._lookups = 0
        self._writes = 0
        self._written = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    async def _look(self) -> None:
        """Check that the store can be read; a new connection may take some time."""
        async with asyncio.timeout(_CONNECT_S + self._timeout_s):
            await self._store.get(f"{_PREFIX}:probe")

    async def _try(self) -> None:
        async with asyncio.timeout(_WRITE_S):
            await self._store.set(f"{_PREFIX}:probe", b"", 1.0)

    def fetch(self, prefix: str, key: bytes) -> "asyncio.Future[InferenceResponse | None] | None":
        if self._reading.open or self.ending or self._lookups >= _MOST_LOOKUPS:
            return None
        return self._go(self._get(f"{prefix}:{key.hex()}", key))

    async def _get(self, name: str, key: bytes) -> InferenceResponse | None:
        self._lookups += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                kept = await self._store.get(name)
        except TimeoutError:
            self._reading.on_failure(f"no reply in {self._timeout_s * 1000:g} ms")
            return None
        except CacheStoreError as error:
            self._reading.on_failure(error)
            return None
        finally:
            self._lookups -= 1
        self._reading.on_success()
        if kept is None:
            return None
        try:
            return await _aside(len(kept), lambda: from_bytes(key, kept))
        except UnusableError as error:
            _log.debug("response cache %s: '%s' is not used: %s", self._store, name, error)
            return None

    def put(self, prefix: str, key: bytes, response: InferenceResponse) -> None:
        size = raw_size(response.outputs.values())
        if self._reading.open or self._writing.open or self.ending or (self._longest and size > self._longest):
            return
        if self._writes >= _MOST_WRITES or self._written + size > _MOST_WRITTEN:
            return
        self._writes += 1
        self._written += size
        self._go(self._set(f"{prefix}:{key.hex()}", key, response, size))

    async def _set(self, name: str, key: bytes, response: InferenceResponse, size: int) -> None:
        try:
            value = await _aside(size, lambda: to_bytes(key, response))
            async with asyncio.timeout(_WRITE_S):
                await self._store.set(name, value, self._ttl_s)
        except TimeoutError:
            self._writing.on_failure(f"a response was not accepted within {_WRITE_S:g} s")
        except CacheStoreError as error:
            self._writing.on_failure(error)
        except ValueError as error:  # a parameter without a JSON form
            _log.debug("response cache %s: '%s' is not kept: %s", self._store, name, error)
        else:
            self._writing.on_success()
        finally:
            self._writes -= 1
            self._written -= size

    def purge(self, prefix: str) -> None:
        """Remove a model's entries in the background. Not while the server ends or the store is unreachable."""
        if not self.ending and not self._reading.open:
            self._go(self._purge(prefix))

    async def _purge(self, prefix: str) -> None:
        try:
            async with asyncio.timeout(_PURGE_S):
                count = await self._store.purge(f"{prefix}:")
        except (CacheStoreError, TimeoutError) as error:
            _log.debug("response cache %s: '%s' was not purged: %s", self._store, prefix, error)
        else:
            _log.debug("response cache %s: %d responses of '%s' were removed", self._store, count, prefix)

    def _go(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """End pending operations, and close the store. Never raises."""
        self.ending = True
        self._reading.end()
        self._writing.end()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            await self._store.close()
        except CacheStoreError as error:
            _log.debug("response cache %s: %s", self._store, error)


class ModelCache:
    """Implements `response_cache.Cache` for one loaded version; versions with the same `identity` share responses.

    `identity` represents everything besides the request that responses depend on: models, configuration, code.
    """

    def __init__(self, shared: SharedCache, model: str, version: int, identity: bytes) -> None:
        self._shared = shared
        self._prefix = f"{_PREFIX}:{model}:{version}:{identity.hex()}"

    def get(self, owner: object, key: bytes) -> InferenceResponse | None:
        """Return None: every lookup takes a wait."""
        return None

    def fetch(self, owner: object, key: bytes) -> "asyncio.Future[InferenceResponse | None] | None":
        return self._shared.fetch(self._prefix, key)

    def put(self, owner: object, key: bytes, response: InferenceResponse) -> None:
        self._shared.put(self._prefix, key, response)

    def forget(self, owner: object) -> None:
        self._shared.purge(self._prefix)


async def _aside(size: int, work: Callable[[], T]) -> T:
    """Return the result of `work`, on a thread if it processes many bytes."""
    return await asyncio.to_thread(work) if size > _LONG else work()


_SCANNED = 500
"""Number of keys that a purge scans at a time."""


def connect(settings: RedisSettings) -> "RedisStore":
    """Return a store that connects on first use. Raises UNAVAILABLE if the library is missing."""
    try:
        from redis.asyncio import BlockingConnectionPool, Connection, Redis, SSLConnection
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
        from redis.exceptions import RedisError
    except ImportError as error:
        raise unavailable(
            f"--cache-config=redis,… needs the library redis ({error}); install it with: {pip_install('redis')}"
        ) from error

    class NamedConnection(SSLConnection):
        """Connection that checks the certificate for another name than the host's."""

        def _connection_arguments(self) -> Mapping[str, Any]:
            return {**super()._connection_arguments(), "server_hostname": settings.sni}

    plain: dict[str, Any] = {
        "host": settings.host,
        "port": settings.port,
        "db": settings.db,
        "username": settings.user or None,
        "password": settings.password or None,
        "socket_connect_timeout": settings.connect_timeout_s,
        # No time limit of the library's own: each call here has one.
        "socket_timeout": None,
        # One retry, at once: an idle connection may have been closed.
        "retry": Retry(NoBackoff(), 1),
    }
    kind: type[Connection] = Connection
    if settings.tls:
        kind = NamedConnection if settings.sni else SSLConnection
        plain |= {
            "ssl_certfile": settings.cert or None,
            "ssl_keyfile": settings.key or None,
            "ssl_ca_certs": settings.cacert or None,
            "ssl_ca_path": settings.cacert_dir or None,
        }
    pool = BlockingConnectionPool(
        max_connections=settings.pool_size, timeout=None, connection_class=kind, protocol=2, **plain
    )
    return RedisStore(settings, Redis(connection_pool=pool), (RedisError, OSError, ValueError))


class RedisStore:
    """Implements `shared_cache.Store`. `failures`: exceptions of the client."""

    def __init__(self, settings: RedisSettings, client: Any, failures: tuple[type[Exception], ...]) -> None:
        self._place = f"redis://{settings.host}:{settings.port}/{settings.db}"
        self._client = client
        self._failures = failures

    def __str__(self) -> str:
        return self._place

    async def get(self, key: str) -> bytes | None:
        value = await self._attempt(partial(self._client.get, key))
        return value if isinstance(value, bytes) else None

    async def set(self, key: str, value: bytes, ttl_s: float) -> None:
        milliseconds = max(1, int(ttl_s * 1000)) if ttl_s else None
        await self._attempt(partial(self._client.set, key, value, px=milliseconds))

    async def purge(self, prefix: str) -> int:
        pattern = "".join(f"\\{each}" if each in "*?[]\\^-" else each for each in prefix) + "*"
        count, cursor = 0, 0
        while True:
            cursor, keys = await self._attempt(partial(self._client.scan, cursor, match=pattern, count=_SCANNED))
            if keys:
                count += await self._attempt(partial(self._client.unlink, *keys))
            if not cursor:
                return count

    async def close(self) -> None:
        await self._attempt(partial(self._client.aclose, close_connection_pool=True))  # it is not the client's own

    async def _attempt(self, call: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await call()
        except self._failures as error:
            raise CacheStoreError(f"{type(error).__name__}: {error}") from error
