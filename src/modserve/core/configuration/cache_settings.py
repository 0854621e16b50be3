"""Settings of the server's response cache (``--cache-config``)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

USER_VARIABLE = "TRITONCACHE_REDIS_USERNAME"
PASSWORD_VARIABLE = "TRITONCACHE_REDIS_PASSWORD"


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """Address and time-outs of a Redis server. The names are those of Triton's options."""

    host: str
    port: int
    user: str = ""
    password: str = field(default="", repr=False)
    db: int = 0
    connect_timeout_s: float = 1.0
    """Time-out of a connection. No request waits for one longer than `socket_timeout_s`."""
    socket_timeout_s: float = 0.1
    """The longest that a request waits for the cache, in all."""
    pool_size: int = 8
    tls: bool = False
    cert: str = ""
    key: str = ""
    cacert: str = ""
    cacert_dir: str = ""
    sni: str = ""

    def with_credentials(self, environment: Mapping[str, str]) -> Self:
        """Return the settings with user and password from the environment, unless the options name them."""
        return replace(
            self,
            user=self.user or environment.get(USER_VARIABLE, ""),
            password=self.password or environment.get(PASSWORD_VARIABLE, ""),
        )


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Cache settings. Without `size` and `redis`, there is no cache."""

    size: int = 0
    """Bytes of the cache in this process."""
    ttl_s: float = 0
    """Maximum age of a response; 0: unlimited."""
    entry_size: int = 0
    """Bytes of the largest cached response; 0: any size that fits."""
    redis: RedisSettings | None = None
