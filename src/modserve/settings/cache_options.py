"""The options of the response cache."""

from typing import Any

from modserve.core.configuration.cache_settings import CacheSettings

from .options import Option, option
from .values import cache_texts, whole_number

CACHE_CONFIG: Any = option(
    CacheSettings(),
    "Cache for responses of models with response_cache: local,size=BYTES in this process (optionally ttl=SECONDS, "
    "entry_size=BYTES), or redis,host=NAME,port=N, shared by several servers (optionally the keys of Triton's "
    "Redis cache, ttl, entry_size); may be repeated.",
    "",
    Option(
        "Same as --cache-config=local,size=N, deprecated.",
        "response-cache-byte-size",
        parse=whole_number,
        deprecated="--cache-config=local,size=N",
    ),
    value="CACHE,KEY=VALUE",
    default_in_words="no cache",
    parse=cache_texts,
    several=True,
)
