"""``--cache-config``: what it takes, and what it says of what it does not take."""

import pytest

from modserve import Settings
from modserve.core.configuration.cache_settings import CacheSettings, RedisSettings
from modserve.settings import OptionError, from_command_line

REDIS = RedisSettings("h", 6379)


def cache(*texts: str) -> CacheSettings:
    options = [f"--cache-config={text}" for text in texts]
    return from_command_line(["--model-repository=m", *options], {}).settings.cache


@pytest.mark.parametrize(
    ("texts", "settings"),
    [
        ([], CacheSettings()),
        (["local,size=5"], CacheSettings(5)),
        (["local,size=5,ttl=1.5,entry_size=3"], CacheSettings(5, 1.5, 3)),
        (["local,size=5", "local,ttl=2"], CacheSettings(5, 2.0)),
        (["redis,host=h,port=6379"], CacheSettings(0, 3600.0, 1 << 24, REDIS)),
        (["redis,host=h", "redis,port=6379", "redis,ttl=0", "redis,entry_size=0"], CacheSettings(0, 0.0, 0, REDIS)),
        (
            ["redis,host=h,port=1,user=u,password=a,b=c,host,db=3"],
            CacheSettings(0, 3600.0, 1 << 24, RedisSettings("h", 1, "u", "a,b=c,host", 3)),
        ),
        (
            ["redis,host=h,port=6379,connect_timeout=500,socket_timeout=20,pool_size=2,wait_timeout=7"],
            CacheSettings(
                0,
                3600.0,
                1 << 24,
                RedisSettings("h", 6379, connect_timeout_s=0.5, socket_timeout_s=0.02, pool_size=2),
            ),
        ),
        (["redis,host=h,port=6379,connect_timeout=0,socket_timeout=0"], CacheSettings(0, 3600.0, 1 << 24, REDIS)),
        (
            ["redis,host=h,port=6379,tls_enabled=true,cert=c,key=k,cacert=a,sni=s"],
            CacheSettings(
                0, 3600.0, 1 << 24, RedisSettings("h", 6379, tls=True, cert="c", key="k", cacert="a", sni="s")
            ),
        ),
    ],
)
def test_settings(texts: list[str], settings: CacheSettings) -> None:
    assert cache(*texts) == settings


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["local"], "expected '<cache name>,<key>=<value>', got: local"),
        (["odd,size=1"], "unknown cache 'odd'; expected local or redis"),
        (["local,ttl=1"], "cache 'local' needs a size: 'local,size=<bytes>'"),
        (["local,sise=1"], "cache 'local' has no setting 'sise'; it has size, ttl, entry_size"),
        (["local,size=-1"], "'size': expected a number of 0 to 4611686018427387904, got: -1"),
        (["local,size=1,ttl=nan"], "'ttl': expected a number of seconds, got: nan"),
        (["redis,host=h,port=0"], "'port': expected a number of 1 to 65535, got: 0"),
        (
            ["redis,host=h,port=1,size=5"],
            "cache 'redis' has no setting 'size': the size of a Redis is its 'maxmemory'; 'entry_size' "
            "is the size of the largest response that is kept",
        ),
        (
            ["redis,host=h,port=1,cert=c"],
            "cache 'redis' has 'cert' without 'tls_enabled=true': it would have no effect",
        ),
        (
            ["redis,host=h,port=1,tls_enabled=true,key=c"],
            "cache 'redis' needs both of 'cert' and 'key', or neither",
        ),
        (["redis,host=h,port=1,tls_enabled=yes"], "'tls_enabled': expected true or false, got: yes"),
        (["local,size=1", "redis,host=h,port=1"], "only one cache is possible, got local and redis"),
    ],
)
def test_mistakes(texts: list[str], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        cache(*texts)
    assert str(caught.value) == f"option '--cache-config': {message}"


def test_a_password_is_not_shown() -> None:
    with pytest.raises(OptionError) as caught:
        cache("redis,password=secret,port=")
    assert "secret" not in str(caught.value)


def test_the_library() -> None:
    assert Settings(model_repository="m", cache_config=7).cache == CacheSettings(7)
    assert Settings(model_repository="m", cache_config="redis,host=h,port=6379").cache.redis == REDIS
    assert Settings(model_repository="m", cache_config=CacheSettings(1)).cache == CacheSettings(1)
    for wrong in (-1, 1.5, True, "local"):
        with pytest.raises(ValueError, match="expected"):
            Settings(model_repository="m", cache_config=wrong)
