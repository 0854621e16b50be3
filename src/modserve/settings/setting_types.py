"""The types of settings, and how texts become their values, in tritonserver's syntax."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, TypeAdapter

from modserve.core.configuration.cache_settings import CacheSettings, RedisSettings
from modserve.core.configuration.trace_settings import OPENTELEMETRY, TRITON
from modserve.core.files.remote_place import RemotePlace, parse_place
from modserve.core.pip_command import pip_install
from modserve.protocol.restricted import CATEGORIES, Restriction, grpc_restrictions, http_restrictions

from . import telemetry

_DEFAULT_TTL_S = 3600.0
"""Lifetime in a Redis: responses of models that are no longer there must go some day."""
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
    """Return a validator: settings of what `cache_texts` made of each option, or of the bytes of a local cache.

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
    """Return seconds. None for 0, which is "for ever" in Triton: no request waits for ever for a cache."""
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
"""Reader of the settings of each cache; a text says why there is none."""


def _read(key: str, reader: _Reader | str, text: str) -> Any:
    assert not isinstance(reader, str), "refused before: this is a bug"
    try:
        return reader(text)
    except ValueError as error:
        raise ValueError(f"'{key}': {error}" if "invalid value for integer" not in str(error) else str(error)) from None


# Texts


def boolean(text: str) -> bool:
    value = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}.get(text.lower())
    if value is None:
        raise ValueError(f"invalid value for bool option: {text} (expected true or false)")
    return value


def whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"invalid value for integer option: {text}") from None


def verbosity(text: str) -> int:
    """Return a level, or a boolean."""
    try:
        return int(boolean(text))
    except ValueError:
        return whole_number(text)


def backend_option(text: str) -> tuple[str, str, str]:
    """``<backend name>,<key>=<value>``, or ``<key>=<value>`` for every backend; a value may have commas."""
    left, equals, value = text.partition("=")
    name, comma, key = left.rpartition(",")
    if not (equals and key and value) or (comma and not name):
        raise ValueError(f"expected '<backend name>,<key>=<value>' or '<key>=<value>', got: {text}")
    return name, key, value


def restriction(word: str, text: str) -> list[tuple[str, str, str]]:
    """``<category>,<category>:<header>=<value>`` as categories with header and value."""
    names, colon, condition = text.partition(":")
    header, equals, value = condition.partition("=")
    if not (names and colon and header and equals and value):
        raise ValueError(f"expected '<{word}>,<{word}>:<header>=<value>', got: {text}")
    return [(_category(word, name), header, value) for name in names.split(",")]


def _category(word: str, name: str) -> str:
    if name not in CATEGORIES:
        raise ValueError(f"unknown restricted {word} '{name}'; allowed are {', '.join(CATEGORIES)}")
    return name


def rate_limit_resource(text: str) -> tuple[tuple[str, int | None], int]:
    """``<name>:<count>`` or ``<name>:<count>:<device>``, as name and device with the count."""
    name, *numbers = text.split(":")
    if not name or len(numbers) not in (1, 2):
        raise ValueError(f"expected '<resource name>:<count>' or '<resource name>:<count>:<device>', got: {text}")
    count, *device = map(whole_number, numbers)
    if min((count, *device)) < 0:
        raise ValueError(f"expected numbers of 0 or more, got: {text}")
    return (name, device[0] if device else None), count


_METRICS = ("counter_latencies", "histogram_latencies", "summary_latencies", "summary_quantiles")


def metrics_setting(text: str) -> tuple[str, str]:
    """``<setting>=<value>``."""
    name, equals, value = text.partition("=")
    if not equals or "," in name:
        raise ValueError(f"expected '<setting>=<value>', got: {text}")
    if name not in _METRICS:
        raise ValueError(f"unknown metrics setting '{name}'; allowed are {', '.join(_METRICS)}")
    if name == "summary_quantiles":
        quantiles(value)
    else:
        value = str(boolean(value)).lower()
    return name, value


def quantiles(text: str) -> tuple[str, ...]:
    """``<quantile>:<error>,…``, as the labels of quantiles. Both are from 0 to 1; the error is not used."""
    labels = []
    for pair in text.split(",") if text else ():
        quantile, colon, error = pair.partition(":")
        try:
            rank, allowed = float(quantile), float(error) if colon else 0.0
        except ValueError:
            rank = allowed = -1.0
        if not (0 <= rank <= 1 and 0 <= allowed <= 1):
            raise ValueError(f"expected '<quantile>:<error>,…' with numbers from 0 to 1, got: {text}")
        labels.append(f"{rank:g}")
    return tuple(dict.fromkeys(labels))


_TRACE_LEVELS = {
    **dict.fromkeys(("false", "off"), "OFF"),
    **dict.fromkeys(("true", "on", "min", "max", "timestamps"), "TIMESTAMPS"),
    "tensors": "TENSORS",
}


def level_name(text: str) -> str:
    level = _TRACE_LEVELS.get(text.lower())
    if level is None:
        raise ValueError(f"invalid value for trace level option: {text}; expected OFF, TIMESTAMPS or TENSORS")
    return level


_TRACE_SETTINGS = {
    "level": "trace-level",
    "rate": "trace-rate",
    "count": "trace-count",
    "mode": "trace-mode",
    "triton,file": "trace-file",
    "triton,log-frequency": "trace-log-frequency",
}
"""The option that a setting of ``--trace-config`` stands for."""


def trace_setting(text: str) -> tuple[str, str]:
    """``<setting>=<value>`` or ``<mode>,<setting>=<value>`` as the option it stands for, and its text."""
    left, equals, value = text.partition("=")
    mode, comma, setting = left.rpartition(",")
    if not (equals and setting and value) or (comma and not mode):
        raise ValueError(
            f"--trace-config option format is '<trace mode>,<setting>=<value>' or '<setting>=<value>'. Got {text}"
        )
    name = f"{trace_mode(mode)},{setting}" if comma else setting
    if comma and trace_mode(mode) == OPENTELEMETRY:
        return "trace-opentelemetry", f"{setting}={value}"
    if name not in _TRACE_SETTINGS:
        raise ValueError(
            f"unknown trace setting '{left}'; allowed are {', '.join(_TRACE_SETTINGS)} and opentelemetry,<setting>"
        )
    return _TRACE_SETTINGS[name], value


def trace_mode(text: str) -> str:
    mode = text.lower()
    if mode not in (TRITON, OPENTELEMETRY):
        raise ValueError(
            f'invalid value for trace mode option: {text}. Available options are "triton" and "opentelemetry"'
        )
    return mode


# Values


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _by_backend(value: object) -> object:
    """Return a mapping by backend: `backend_option` makes a list of names, keys and values."""
    if not isinstance(value, list):
        return value
    backends: dict[str, dict[str, str]] = {}
    for name, key, text in value:
        backends.setdefault(name, {})[key] = text
    return backends


def _by_resource(value: object) -> object:
    """Return a mapping by name and device: `rate_limit_resource` makes pairs, of which the largest count holds."""
    if not isinstance(value, list):
        return value
    counts: dict[tuple[str, int | None], int] = {}
    for place, count in value:
        counts[place] = max(count, counts.get(place, 0))
    return counts


def _metrics(value: object) -> object:
    """`metrics_setting` makes pairs."""
    pairs = value.items() if isinstance(value, Mapping) else value
    return dict(metrics_setting(f"{name}={text}") for name, text in pairs) if isinstance(pairs, Iterable) else value


def _config_name(text: str) -> str:
    if text and not re.fullmatch(r"[\w.-]+", text):
        raise ValueError("expected the name of a file in the models' folders 'configs', without '.pbtxt'")
    return text


def _places(value: object) -> tuple[Path | RemotePlace, ...]:
    """Return one place or several, each once: tritonserver treats a repeated --model-repository as a set."""
    places = [value] if isinstance(value, str | Path | RemotePlace) else value
    if not isinstance(places, list | tuple) or not all(isinstance(place, str | Path | RemotePlace) for place in places):
        raise ValueError("expected a path, or a list of paths")
    return tuple(
        dict.fromkeys(
            place if isinstance(place, RemotePlace) else parse_place(str(place)) or Path(place) for place in places
        )
    )


MODEL_MARK = "__modserve_model__"
"""The attribute by which an object shows that ``modserve.model`` has decorated it."""
PLACE = re.compile(r"(?:(?P<name>[^=:/]+)=)?(?P<place>[^=:]+:(?P<path>[^\W\d]\w*(\.[^\W\d]\w*)*))")
"""``[NAME=]MODULE:OBJECT``."""


def _python_models(value: object) -> Mapping[str, object]:
    """Decorated objects, or their places as texts, by the names of their models."""
    if isinstance(value, Mapping):
        pairs = [(name, _parse_target(target)[1]) for name, target in value.items()]
    else:
        pairs = [_parse_target(each) for each in (value if isinstance(value, list | tuple) else [value])]
    for name, _ in pairs:
        if not isinstance(name, str) or not name.strip() or name in (".", "..") or "/" in name:
            raise ValueError(f"a model cannot be called {name!r}; expected {{'name': object}} or NAME=MODULE:OBJECT")
        if [other for other, _ in pairs].count(name) > 1:
            raise ValueError(f"two models are called '{name}'; NAME=MODULE:OBJECT gives one of them another name")
    return dict(pairs)


def _parse_target(target: object) -> tuple[str, object]:
    """Return a decorated object or its place, with the name that its model has unless another one is written."""
    if isinstance(target, str):
        match = PLACE.fullmatch(target)
        if match is None:
            raise ValueError(f"expected '[NAME=]MODULE:OBJECT', such as 'my_module:my_model', got: {target}")
        return match["name"] or match["path"].rpartition(".")[2], match["place"]
    if not hasattr(target, MODEL_MARK):
        raise ValueError(f"expected an object that modserve.model has decorated, or 'MODULE:OBJECT', got: {target!r}")
    return getattr(target, "__name__", ""), target


_NAMED_FILE = re.compile(r"(?:(?P<name>[^=/]+)=)?(?P<file>.+)", re.DOTALL)


def _model_files(value: object) -> tuple[tuple[str, Path], ...]:
    """Names and paths; a name is empty if the file's is to be taken."""
    if isinstance(value, Mapping):
        pairs = list(value.items())
    else:
        pairs = [_parse_named_file(each) for each in (value if isinstance(value, list | tuple) else [value])]
    if not all(isinstance(name, str) and isinstance(path, str | Path) for name, path in pairs):
        raise ValueError("expected a path, a list of paths, or {'name': path}")
    for _, path in pairs:
        if "://" in str(path) and not os.path.exists(path):
            raise ValueError(f"'{path}' is no path; serve a place of models with '--model-repository={path}'")
    return tuple((name, Path(path)) for name, path in pairs)


def _parse_named_file(value: object) -> tuple[object, object]:
    match = _NAMED_FILE.fullmatch(value) if isinstance(value, str) else None
    if isinstance(value, tuple) and len(value) == 2:
        return value
    return (match["name"] or "", match["file"]) if match is not None and not os.path.exists(str(value)) else ("", value)


def header_pattern(text: str) -> re.Pattern[str]:
    """Return a pattern to be searched in headers' names. It ignores case, unless the text begins with ``(?-i)``.

    Python's regular expressions, where Triton has RE2's. Raises ValueError.
    """
    pattern = text.removeprefix("(?-i)")
    try:
        return re.compile(pattern, re.IGNORECASE if pattern == text else 0)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error}") from None


def pattern_without(pattern: re.Pattern[str], names: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that is found where `pattern` is, but not in these names, in any case."""
    secrets = "|".join(map(re.escape, sorted(names)))
    text = re.sub(r"\A(\(\?[aiLmsux]+\))*", "", pattern.pattern)  # `pattern.flags` has these flags
    end = "\n)" if pattern.flags & re.VERBOSE else ")"  # after a comment
    return re.compile(rf"\A(?!(?i:{secrets})\Z)(?s:.*?)(?:{text}{end}", pattern.flags)


def _pattern_or_none(value: object) -> object:
    return (header_pattern(value) if value else None) if isinstance(value, str) else value


_ORIGIN = re.compile(r"\*|null|[A-Za-z][A-Za-z0-9+.-]*://[^\s/?#,@*]+")


def _origin(text: str) -> str:
    if not _ORIGIN.fullmatch(text):
        raise ValueError("not an origin; expected '*', or '<scheme>://<host>' with ':<port>' if it has one")
    return text.lower()


_HOST = re.compile(r"\*|\[[0-9A-Fa-f:.]+\]|[^\s/?#,@*:\[\]]+")


def _host(text: str) -> str:
    if not _HOST.fullmatch(text):
        raise ValueError("not the name of a host; expected '*', or a name without scheme and port")
    return text.lower().rstrip(".")


_PAIR = TypeAdapter(tuple[str, str])


def _restrictions(word: str, make: Callable[[Mapping[str, tuple[str, str]]], object], value: Any) -> object:
    """Restrictions by category: `restriction` makes a list of lists, and the library takes headers by category."""
    if isinstance(value, Mapping):
        if all(isinstance(each, Restriction) for each in value.values()):
            return value
        value = [[(_category(word, name), *_PAIR.validate_python(pair)) for name, pair in value.items()]]
    if not isinstance(value, list):
        raise ValueError("expected the names and values of headers by category")
    headers: dict[str, tuple[str, str]] = {}
    for name, header, secret in (each for group in value for each in group):
        if name in headers:
            raise ValueError(f"restricted {word} '{name}' can not be specified in multiple config groups")
        headers[name] = header, secret
    return make(headers)


Port = Annotated[int, Field(ge=0, le=65535)]
Milliseconds = Annotated[int, Field(ge=1, le=2**31 - 1)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
UnsignedCount = Annotated[int, Field(ge=0, le=2**32 - 1)]
AnyFlag = Annotated[bool, BeforeValidator(lambda value: any(value) if isinstance(value, list) else value)]
"""True if one of several is."""
ControlMode = Annotated[Literal["none", "explicit", "poll"], BeforeValidator(_lower)]
Compression = Annotated[Literal["none", "low", "medium", "high"], BeforeValidator(_lower)]
Repositories: TypeAlias = str | Path | RemotePlace | Sequence[str | Path | RemotePlace]
Places = Annotated[Repositories, PlainValidator(_places)]
PythonModels = Annotated[Mapping[str, object], PlainValidator(_python_models)]
ModelFiles = Annotated[tuple[tuple[str, Path], ...], PlainValidator(_model_files)]
CacheConfig = Annotated[CacheSettings | int | str, PlainValidator(cache_settings)]
MetricsConfig = Annotated[Mapping[str, str], BeforeValidator(_metrics)]
TraceMode = Annotated[Literal["triton", "opentelemetry"], BeforeValidator(_lower)]
SpanConfig = Annotated[tuple[tuple[str, str], ...], BeforeValidator(telemetry.settings)]
ConfigName = Annotated[str, AfterValidator(_config_name)]
RateLimit = Annotated[Literal["off", "execution_count"], BeforeValidator(_lower)]
RateLimitResources = Annotated[Mapping[tuple[str, int | None], int], BeforeValidator(_by_resource)]
BackendOptions = Annotated[Mapping[str, Mapping[str, str]], BeforeValidator(_by_backend)]
HeaderPattern = Annotated[re.Pattern[str] | None, BeforeValidator(_pattern_or_none)]
Origin = Annotated[str, AfterValidator(_origin)]
Origins = Annotated[frozenset[Origin], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]
Host = Annotated[str, AfterValidator(_host)]
Hosts = Annotated[frozenset[Host], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]
Restrictions: TypeAlias = Mapping[str, Restriction]
HttpRestrictions = Annotated[Restrictions, BeforeValidator(partial(_restrictions, "api", http_restrictions))]
GrpcRestrictions = Annotated[Restrictions, BeforeValidator(partial(_restrictions, "protocol", grpc_restrictions))]
