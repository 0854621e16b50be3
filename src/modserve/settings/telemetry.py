"""``--trace-config opentelemetry,…``: export of traces to a collector. Names and defaults are Triton's.

`protocol` is an addition.

Defaults come from OpenTelemetry's variables: for batches they are read here, as in Triton; for the connection
(``OTEL_EXPORTER_OTLP_…``), in the exporter.
"""

from collections.abc import Iterable, Mapping
from importlib.util import find_spec

from modserve.core.configuration.trace_settings import SpanSettings
from modserve.core.pip_command import pip_install

_TEXTS = ("url", "protocol", "resource")
_NUMBERS = ("bsp_max_queue_size", "bsp_schedule_delay", "bsp_max_export_batch_size")
NAMES = (*_TEXTS, *_NUMBERS)
_PROTOCOLS = ("http/protobuf", "grpc")
_MOST = 2**31 - 1


def setting(text: str) -> tuple[str, str]:
    """Parse ``<setting>=<value>``. Raises ValueError."""
    name, equals, value = text.partition("=")
    if not (equals and name and value):
        raise ValueError(f"expected '<setting>=<value>', got: {text}")
    if name not in NAMES:
        raise ValueError(f"unknown setting '{name}' of trace mode opentelemetry; allowed are {', '.join(NAMES)}")
    if name == "protocol":
        _check_protocol(value, name)
    elif name == "resource":
        key, between, _ = value.partition("=")
        if not (key and between):
            raise ValueError(f"expected 'resource=<key>=<value>', got: {text}")
    elif name in _NUMBERS:
        _number(value, name)
    return name, value


def settings(value: object) -> object:
    """Validate pairs of `setting`, a mapping by name, or texts; return pairs."""
    if isinstance(value, Mapping):
        entries = value.items()
        return tuple(setting(f"{name}={text}") for name, texts in entries for text in _each(name, texts))
    if isinstance(value, str):
        return (setting(value),)
    if not isinstance(value, Iterable):
        raise ValueError("expected a mapping such as {'url': 'http://localhost:4318/v1/traces'}")
    return tuple(setting(each) if isinstance(each, str) else each for each in value)


def _each(name: str, value: object) -> Iterable[object]:
    if name == "resource" and isinstance(value, Mapping):
        return [f"{key}={text}" for key, text in value.items()]
    return value if isinstance(value, list | tuple) else [value]


def span_settings(pairs: Iterable[tuple[str, str]], environment: Mapping[str, str]) -> SpanSettings:
    """Return the settings, with missing ones from the environment. Raises ValueError."""
    pairs = tuple(pairs)
    texts = dict(pairs)
    for variable in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if "protocol" not in texts and environment.get(variable):
            _check_protocol(environment[variable], variable)
    numbers = {}
    for name in _NUMBERS:
        variable = f"OTEL_{name.upper()}"
        if name in texts:
            numbers[name] = _number(texts[name], name)
        elif environment.get(variable):
            numbers[name] = _number(environment[variable], variable)
    resource = dict(value.split("=", 1) for name, value in pairs if name == "resource")
    return SpanSettings(texts.get("url", ""), texts.get("protocol", ""), tuple(resource.items()), **numbers)


def check_library() -> None:
    """Raise ValueError if OpenTelemetry is not installed."""
    exporters = ("opentelemetry.exporter.otlp.proto.http", "opentelemetry.exporter.otlp.proto.grpc")
    needed = ("opentelemetry.sdk.trace", *exporters)
    if not all(map(_is_installed, needed)):
        raise ValueError(
            f"trace mode 'opentelemetry' needs the OpenTelemetry library; install it with: {pip_install('otel')}"
        )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _check_protocol(value: str, name: str) -> None:
    if value not in _PROTOCOLS:
        raise ValueError(f"{name} is '{value}', expected {' or '.join(_PROTOCOLS)}")


def _number(text: str, name: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= number <= _MOST:
        raise ValueError(f"{name} is '{text}', expected a number of 1 to {_MOST}")
    return number
