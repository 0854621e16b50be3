"""The options of the response cache."""

from typing import Any

from modserve.core.configuration.cache_settings import CacheSettings

from .options import Option, option
from .setting_types import cache_texts, whole_number

CACHE_CONFIG: Any = option(
    CacheSettings(),
    "Response cache: local,size=BYTES, or redis,host=NAME,port=N for several servers; other keys: ttl, entry_size, "
    "and Triton's for Redis; repeatable.",
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
