"""Settings of the response cache (``--cache-config``)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

USER_VARIABLE = "TRITONCACHE_REDIS_USERNAME"
PASSWORD_VARIABLE = "TRITONCACHE_REDIS_PASSWORD"


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """Address and time-outs of a Redis server, under the names of Triton's options."""

    host: str
    port: int
    user: str = ""
    password: str = field(default="", repr=False)
    db: int = 0
    connect_timeout_s: float = 1.0
    """Connection time-out. Requests wait for a connection for at most `socket_timeout_s`."""
    socket_timeout_s: float = 0.1
    """Maximum total time that a request waits for the cache."""
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
    """Cache settings. Without `size` and `redis` there is no cache."""

    size: int = 0
    """Size of the cache in this process, in bytes."""
    ttl_s: float = 0
    """Maximum age of a response; 0: unlimited."""
    entry_size: int = 0
    """Size limit of a cached response in bytes; 0: any size that fits."""
    redis: RedisSettings | None = None
