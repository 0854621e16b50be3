"""A Redis as the store of a response cache, by the library redis (extra `redis`)."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from modserve.core.configuration.cache_settings import RedisSettings
from modserve.core.errors import unavailable
from modserve.core.pip_command import pip_install

from .shared_cache import CacheStoreError

_SCANNED = 500
"""Keys that a purge looks at in one go."""


def connect(settings: RedisSettings) -> "RedisStore":
    """A store that connects when it is first used. Raises UNAVAILABLE if the library is missing."""
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
        """Asks for the certificate of another name than that of the host."""

        def _connection_arguments(self) -> Mapping[str, Any]:
            return {**super()._connection_arguments(), "server_hostname": settings.sni}

    plain: dict[str, Any] = {
        "host": settings.host,
        "port": settings.port,
        "db": settings.db,
        "username": settings.user or None,
        "password": settings.password or None,
        "socket_connect_timeout": settings.connect_timeout_s,
        # No limit of the library's own: each call here has one around it.
        "socket_timeout": None,
        # At once, and once only: a connection that has been idle may have ended.
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
    """Implements `shared_cache.Store`. `failures` are what the client raises."""

    def __init__(self, settings: RedisSettings, client: Any, failures: tuple[type[Exception], ...]) -> None:
        self._place = f"redis://{settings.host}:{settings.port}/{settings.db}"
        self._client = client
        self._failures = failures

    def __str__(self) -> str:
        return self._place

    async def get(self, key: str) -> bytes | None:
        value = await self._tried(partial(self._client.get, key))
        return value if isinstance(value, bytes) else None

    async def set(self, key: str, value: bytes, ttl_s: float) -> None:
        milliseconds = max(1, int(ttl_s * 1000)) if ttl_s else None
        await self._tried(partial(self._client.set, key, value, px=milliseconds))

    async def purge(self, prefix: str) -> int:
        pattern = "".join(f"\\{each}" if each in "*?[]\\^-" else each for each in prefix) + "*"
        count, cursor = 0, 0
        while True:
            cursor, keys = await self._tried(partial(self._client.scan, cursor, match=pattern, count=_SCANNED))
            if keys:
                count += await self._tried(partial(self._client.unlink, *keys))
            if not cursor:
                return count

    async def close(self) -> None:
        await self._tried(partial(self._client.aclose, close_connection_pool=True))  # else only a pool of its own

    async def _tried(self, call: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await call()
        except self._failures as error:
            raise CacheStoreError(f"{type(error).__name__}: {error}") from error
