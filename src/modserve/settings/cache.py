"""``--cache-config``: texts such as ``local,size=1048576`` and ``redis,host=a,port=6379`` as the settings of a cache.

Names and meanings are those of Triton's local cache and of its Redis cache; `ttl` and `entry_size` are our own.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from modserve.core.configuration.cache_settings import CacheSettings, RedisSettings
from modserve.core.pip_command import pip_install

_DEFAULT_TTL_S = 3600.0
"""Of a Redis: what models responded that are no longer there must go some day."""
_DEFAULT_ENTRY = 16 * 1024 * 1024


def cache_texts(text: str) -> list[tuple[str, str, str]]:
    """``<cache name>,<key>=<value>``, with more keys after commas, as names, keys and values. Raises ValueError.

    A comma in a value is kept, unless a key of that cache and an equals sign follow: passwords may have commas.
    """
    name, _, rest = text.partition(",")
    if name not in _READERS and (not rest or "=" in name):
        raise ValueError(f"expected '<cache name>,<key>=<value>', got: {_without_secrets(text)}")
    if name not in _READERS:
        raise ValueError(f"unknown cache '{name}'; expected {' or '.join(_READERS)}")
    keys = _READERS[name]
    entries = []
    for part in re.split(rf",(?=(?:{'|'.join(keys)})=)", rest):
        key, equals, value = part.partition("=")
        if not (key and equals and value):
            raise ValueError(f"expected '<cache name>,<key>=<value>', got: {_without_secrets(text)}")
        if key not in keys:
            raise ValueError(f"cache '{name}' has no setting '{key}'; it has {', '.join(_working(keys))}")
        if isinstance(reader := keys[key], str):
            raise ValueError(f"cache '{name}' has no setting '{key}': {reader}")
        _read(key, reader, value)
        entries.append((name, key, value))
    return entries


def _working(keys: Mapping[str, object]) -> list[str]:
    return [key for key, reader in keys.items() if not isinstance(reader, str)]


def _without_secrets(text: str) -> str:
    return re.sub(r"(password=).*", r"\1…", text)


def cache_settings(value: object) -> object:
    """A validator: settings of what `cache_texts` made of each option, or of the bytes of a local cache.

    The environment has the user and password of a Redis where they have none.
    """
    settings = _cache_settings(value)
    redis = None if settings.redis is None else settings.redis.with_credentials(os.environ)
    return replace(settings, redis=redis)


def _cache_settings(value: object) -> CacheSettings:
    if isinstance(value, CacheSettings):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise ValueError("expected a number of bytes of 0 or more")
        return CacheSettings(value)
    if isinstance(value, str):
        value = [cache_texts(value)]
    if not isinstance(value, list):
        raise ValueError("expected a number of bytes, or a text such as 'local,size=1048576'")
    entries = [entry for group in value for entry in group]
    names = {name for name, _, _ in entries}
    if len(names) > 1:
        raise ValueError(f"only one cache is possible, got {' and '.join(sorted(names))}")
    (name,) = names
    values = {key: _read(key, _READERS[name][key], text) for _, key, text in entries}
    return _local(values) if name == "local" else _redis(values)


def _local(values: Mapping[str, Any]) -> CacheSettings:
    if "size" not in values:
        raise ValueError("cache 'local' needs a size: 'local,size=<bytes>'")
    return CacheSettings(values["size"], values.get("ttl", 0.0), values.get("entry_size", 0))


def _redis(values: Mapping[str, Any]) -> CacheSettings:
    if not {"host", "port"} <= values.keys():
        raise ValueError("cache 'redis' needs its address: 'redis,host=<name>' and 'redis,port=<number>'")
    tls = {"cert", "key", "cacert", "cacert_dir", "sni"} & values.keys()
    if tls and not values.get("tls_enabled"):
        raise ValueError(f"cache 'redis' has '{min(tls)}' without 'tls_enabled=true': it would have no effect")
    if ("cert" in values) != ("key" in values):
        raise ValueError("cache 'redis' needs both of 'cert' and 'key', or neither")
    if find_spec("redis") is None:
        raise ValueError(f"cache 'redis' needs the library redis; install it with: {pip_install('redis')}")
    renamed = {
        "tls_enabled": "tls",
        "connect_timeout": "connect_timeout_s",
        "socket_timeout": "socket_timeout_s",
    }
    own = ("ttl", "entry_size", "wait_timeout")
    redis = {renamed.get(key, key): value for key, value in values.items() if key not in own and value is not None}
    return CacheSettings(
        0, values.get("ttl", _DEFAULT_TTL_S), values.get("entry_size", _DEFAULT_ENTRY), RedisSettings(**redis)
    )


# Values


def _text(text: str) -> str:
    return text


def _number(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"invalid value for integer option: {text}") from None
        if not least <= value <= most:
            raise ValueError(f"expected a number of {least} to {most}, got: {text}")
        return value

    return number


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e10:
        raise ValueError(f"expected a number of seconds, got: {text}")
    return value


_MILLISECONDS = _number(0, 600_000)


def _milliseconds(text: str) -> float | None:
    """As seconds. None for 0, which is "for ever" in Triton: no request waits for ever for a cache."""
    return _MILLISECONDS(text) / 1000 or None


def _switch(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"expected true or false, got: {text}")
    return text.lower() == "true"


_REFUSED_SIZE = "the size of a Redis is its 'maxmemory'; 'entry_size' is the size of the largest response that is kept"
_SIZE = _number(0, 2**62)
_Reader = Callable[[str], Any]
_READERS: Mapping[str, Mapping[str, _Reader | str]] = {
    "local": {"size": _SIZE, "ttl": _seconds, "entry_size": _SIZE},
    "redis": {
        "host": _text,
        "port": _number(1, 65535),
        "user": _text,
        "password": _text,
        "db": _number(0, 2**31 - 1),
        "connect_timeout": _milliseconds,
        "socket_timeout": _milliseconds,
        "wait_timeout": _milliseconds,
        "pool_size": _number(1, 1024),
        "tls_enabled": _switch,
        "cert": _text,
        "key": _text,
        "cacert": _text,
        "cacert_dir": _text,
        "sni": _text,
        "ttl": _seconds,
        "entry_size": _SIZE,
        "size": _REFUSED_SIZE,
    },
}
"""How the settings of each cache are read; a text says why there is none."""


def _read(key: str, reader: _Reader | str, text: str) -> Any:
    assert not isinstance(reader, str), "refused before: this is a bug"
    try:
        return reader(text)
    except ValueError as error:
        raise ValueError(f"'{key}': {error}" if "invalid value for integer" not in str(error) else str(error)) from None
