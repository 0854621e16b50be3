"""Every setting of a server, and the one place that reads the command line and the environment.

`Settings` is what the library takes. The command line's options are a table over its fields, spelled as tritonserver
spells them; each can also be given in the environment as ``MODSERVE_`` and its name in capitals.
"""

import difflib
import functools
import itertools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Self, cast, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    model_validator,
)

Port = Annotated[int, Field(ge=0, le=65535)]
Milliseconds = Annotated[int, Field(ge=1, le=2**31 - 1)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
RestrictedCategory = Literal[
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
]


def _paths(value: object) -> tuple[Path, ...]:
    """One path or several: a set, as tritonserver treats a repeated --model-repository."""
    each = [value] if isinstance(value, str | Path) else value
    if not isinstance(each, list | tuple) or not all(isinstance(path, str | Path) for path in each):
        raise ValueError("expected a path, or a list of paths")
    if not each:
        raise ValueError("no model repository given; say '--model-repository DIR'")
    for path in each:
        if _REMOTE.match(str(path)):
            raise ValueError(
                f"remote repositories are not supported by this version of modserve, got: {path}; "
                "mount or copy the bucket, and give the directory where its models are"
            )
    return tuple(dict.fromkeys(map(Path, each)))


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _several(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def header_pattern(text: str) -> re.Pattern[str]:
    """A pattern that is searched in headers' names: upper and lower case are the same, unless it begins ``(?-i)``.

    Python's regular expressions, where Triton has RE2's. Raises ValueError for what is none of them.
    """
    rest = text.removeprefix(_CASE_MATTERS)
    try:
        return re.compile(rest, re.IGNORECASE if rest == text else 0)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error}") from None


def _checked_pattern(text: str) -> str:
    header_pattern(text)
    return text


def _origin(text: str) -> str:
    if not _ORIGIN.fullmatch(text):
        raise ValueError("not an origin; expected '*', or '<scheme>://<host>' with ':<port>' if it has one")
    return text.lower()


_CASE_MATTERS = "(?-i)"
_REMOTE = re.compile(r"(?:s3|gs|as|az|abfss?|hdfs|https?):/", re.IGNORECASE)
"""How a repository's place begins that is no directory; a `Path` has one slash of two only."""
_ORIGIN = re.compile(r"\*|null|[A-Za-z][A-Za-z0-9+.-]*://[^\s/?#,@*]+")
HeaderPattern = Annotated[str, AfterValidator(_checked_pattern)]
Origin = Annotated[str, AfterValidator(_origin)]


class Settings(BaseModel):
    """How a server runs. All fields have defaults but for `model_repository`; times are in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model_repository: Annotated[str | Path | Sequence[str | Path], PlainValidator(_paths)]
    """One or several directories of models; `repositories` has them as paths."""
    id: str = "modserve"
    """The server's name in its metadata."""
    exit_on_error: bool = False
    """Stop if a model fails to load at the start, instead of serving the others."""
    exit_timeout_secs: Annotated[int, Field(ge=0)] = 30
    """How long a stopping server waits for what is in flight."""
    strict_readiness: bool = True
    """Be ready only when every model is; otherwise as soon as the first load is over."""
    model_control_mode: Annotated[Literal["none", "explicit", "poll"], BeforeValidator(_lower)] = "none"
    """Which models are loaded when; none: all at the start, no changes later; explicit: `load_model` at the start, then
    by calls; poll: all at the start, then changes in the repositories are followed."""
    load_model: tuple[str, ...] = ()
    """With mode explicit, the models loaded at the start; ``*`` alone stands for all."""
    repository_poll_secs: Annotated[int, Field(ge=0)] = 15
    """With mode poll, the time between two looks; 0 for never."""
    model_load_retry_count: Annotated[int, Field(ge=0)] = 0
    """How often a load that failed is tried again."""
    model_load_thread_count: Annotated[int, Field(ge=1)] = 4
    """How many model versions load at the same time."""
    disable_auto_complete_config: bool = False
    """Fill in nothing that a config.pbtxt leaves out."""
    backend_config: Mapping[str, Mapping[str, str]] = Field(default_factory=dict)
    """Options by backend name; those of the name ``""`` are for every backend that has none of its own."""
    cache_config: Annotated[int, Field(ge=0)] = 0
    """Bytes for responses of models with `response_cache`; 0: none are kept."""

    request_memory_limit: Annotated[int, Field(ge=0)] | None = None
    """Bytes that all requests together may hold; 0: any number; None: half of what the container or machine has."""
    allow_client_shm: bool = False
    """Let clients register shared memory, and put tensors there."""

    allow_http: bool = True
    http_address: str = "0.0.0.0"
    http_port: Port = 8000
    http_max_input_size: Annotated[int, Field(ge=1)] = 64 * 1024 * 1024
    """The longest JSON accepted in a request, in bytes; the limit of binary tensor data is `request_memory_limit`."""
    http_max_connections: Count = 10_000
    """HTTP connections at the same time; fewer if the process may not open enough files for so many."""
    http_idle_timeout: Count = 620
    """How long an HTTP connection without a request stays open; 0: for ever."""
    http_client_timeout: Count = 60
    """How long a client may take to finish a request's head, to send more of its body or to read more of a response;
    0: for ever."""

    reuse_http_port: bool = False
    """Share the HTTP port with other servers that do as well; the system spreads connections over them."""
    http_header_forward_pattern: HeaderPattern = ""
    """A regular expression, searched in headers' names: those become parameters of inference requests. Empty: none."""
    http_cors_allow_origin: Annotated[tuple[Origin, ...], BeforeValidator(_several)] = ()
    """Origins whose pages may call the server from a browser; ``*`` for any."""
    http_restricted_api: Mapping[RestrictedCategory, tuple[str, str]] = Field(default_factory=dict)
    """The header's name and value that HTTP calls of a category need."""
    http_use_ssl: bool = False
    """Serve HTTPS only. Files that are not given are those of gRPC."""
    http_use_ssl_mutual: bool = False
    """As `http_use_ssl`, and clients must present a certificate of the root's."""
    http_server_cert: str = ""
    http_server_key: str = ""
    http_root_cert: str = ""

    allow_grpc: bool = True
    grpc_address: str = "0.0.0.0"
    grpc_port: Port = 8001
    reuse_grpc_port: bool = False
    """As `reuse_http_port`."""
    grpc_header_forward_pattern: HeaderPattern = ""
    """As `http_header_forward_pattern`, for metadata."""
    grpc_restricted_protocol: Mapping[RestrictedCategory, tuple[str, str]] = Field(default_factory=dict)
    """As `http_restricted_api`; the header's name goes behind ``triton-grpc-protocol-``."""
    grpc_use_ssl: bool = False
    """Serve gRPC over TLS only."""
    grpc_use_ssl_mutual: bool = False
    """As `grpc_use_ssl`, and clients must present a certificate of the root's."""
    grpc_server_cert: str = ""
    """A PEM file with the server's certificate, and those between it and the root."""
    grpc_server_key: str = ""
    """A PEM file with the certificate's private key, not encrypted."""
    grpc_root_cert: str = ""
    """A PEM file with the certificates that sign those of clients."""
    grpc_infer_response_compression_level: Annotated[
        Literal["none", "low", "medium", "high"], BeforeValidator(_lower)
    ] = "none"
    """How answers are compressed for clients that take it."""
    grpc_max_message_size: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """The longest message accepted from a client, in bytes; 0: any length; None: an eighth of what the container or
    machine has, and 2 GiB at most, which is the most that protobuf takes."""
    grpc_max_concurrent_streams: Annotated[int, Field(ge=0, le=2**31 - 1)] = 1_000
    """Calls that a client may have open on one connection, the others wait in the client; 0: any number."""
    grpc_keepalive_time: Milliseconds = 7_200_000
    """When a silent client is sent a ping; times of gRPC connections are in milliseconds."""
    grpc_keepalive_timeout: Milliseconds = 20_000
    """How long that client may take to answer before its connection is closed."""
    grpc_keepalive_permit_without_calls: bool = False
    """Send pings on connections without calls, too."""
    grpc_http2_max_pings_without_data: Count = 2
    """Pings that may be sent with no data in between; 0: any number."""
    grpc_http2_min_recv_ping_interval_without_data: Count = 300_000
    """A client that pings more often than this without data gets a strike."""
    grpc_http2_max_ping_strikes: Count = 2
    """Strikes that a client may have before its connection is closed; 0: any number."""
    grpc_max_connection_age: Count = 0
    """When a connection is told to end, so that clients connect anew; 0: never."""
    grpc_max_connection_age_grace: Count = 0
    """How long its calls may still take; 0: for ever."""

    allow_metrics: bool = True
    metrics_address: str = ""
    """The HTTP address if empty."""
    metrics_port: Port = 8002

    event_loop_warning_ms: Annotated[int, Field(ge=0, le=60_000)] = 250
    """When the event loop is held for so many milliseconds, the log says by what; 0: never."""

    server_timing: bool = False
    """Answers to inference requests tell what they have cost: in a header, trailing metadata or a parameter."""

    log_verbose: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0
    log_info: bool = True
    log_warning: bool = True
    log_error: bool = True
    log_format: Literal["default", "ISO8601"] = "ISO8601"
    """How log lines look; default: as Triton's do by default."""
    log_file: str = ""
    """A file to which log lines are added, in place of standard error."""

    trace_level: tuple[Literal["OFF", "TIMESTAMPS", "TENSORS"], ...] = ()
    """What is recorded of traced requests; nothing if OFF is among them."""
    trace_rate: Annotated[int, Field(ge=0, le=2**32 - 1)] = 1000
    """Every how many requests one is traced."""
    trace_count: Annotated[int, Field(ge=-1, le=2**31 - 1)] = -1
    """How many requests are traced; -1: any number."""
    trace_log_frequency: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0
    """How many traces go into one file, which then has an index behind its name; 0: all into one, without."""
    trace_file: str = ""
    """Where traces are written; without it, nothing is traced."""

    supervise: bool = False
    """The command runs the server as a child process, and starts it again when it crashes. Not for the library."""

    @property
    def repositories(self) -> tuple[Path, ...]:
        """The directories of models, each once."""
        return cast(tuple[Path, ...], self.model_repository)

    @model_validator(mode="after")
    def _check_control(self) -> Self:
        """Triton's rules, with its texts."""
        if self.load_model and self.model_control_mode != "explicit":
            raise ValueError("Use of '--load-model' requires setting '--model-control-mode=explicit' as well.")
        if "*" in self.load_model and len(self.load_model) > 1:
            raise ValueError("Wildcard model name '*' must be the ONLY startup model if specified at all.")
        return self

    @model_validator(mode="after")
    def _check_certificates(self) -> Self:
        """TLS needs its files, mutual TLS also the clients' roots."""
        for protocol in ("http", "grpc"):
            mutual = getattr(self, f"{protocol}_use_ssl_mutual")
            if not (mutual or getattr(self, f"{protocol}_use_ssl")):
                continue
            for file in ("server-cert", "server-key", *(["root-cert"] if mutual else [])):
                options = dict.fromkeys((f"{protocol}-{file}", f"grpc-{file}"))
                if not any(getattr(self, option.replace("-", "_")) for option in options):
                    given = f"--{protocol}-use-ssl" + ("-mutual" if mutual else "")
                    needed = " or ".join(f"'--{option}'" for option in options)
                    raise ValueError(f"option '{given}' needs {needed}")
        return self


class OptionError(Exception):
    """The command line or the environment says something that is no setting; the text tells what and what would be."""


@dataclass(frozen=True, slots=True)
class Option:
    """A command line option: `field` of Settings, `parse` its text, `help` a line for ``--help``."""

    name: str
    field: str
    parse: Callable[[str], Any]
    help: str
    repeatable: bool = False
    """Given several times, the values form a list."""
    flag: bool = False
    """Takes no value."""

    @property
    def metavar(self) -> str:
        """What stands for the value in ``--help``."""
        if self.parse in (_int, _verbosity):
            return "N"
        return _METAVARS.get(self.name.rpartition("-")[2], "VALUE")


_METAVARS = {
    "address": "ADDRESS",
    "cert": "FILE",
    "file": "FILE",
    "key": "FILE",
    "model": "NAME",
    "origin": "ORIGIN",
    "repository": "DIR",
    "store": "DIR",
}
"""By the last word of an option's name."""


def _bool(text: str) -> bool:
    value = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}.get(text.lower())
    if value is None:
        raise ValueError(f"invalid value for bool option: {text}")
    return value


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"invalid value for integer option: {text}") from None


def _verbosity(text: str) -> int:
    try:
        return int(_bool(text))
    except ValueError:
        return _int(text)


def _backend_option(text: str) -> tuple[str, str, str]:
    """``<backend name>,<key>=<value>``, or ``<key>=<value>`` for every backend; a value may have commas."""
    where, equals, value = text.partition("=")
    name, comma, key = where.rpartition(",")
    if not (equals and key and value) or (comma and not name):
        raise ValueError(f"expected '<backend name>,<key>=<value>' or '<key>=<value>', got: {text}")
    return name, key, value


def _cache_option(text: str) -> tuple[bool, int]:
    """Not by the deprecated option, and the size."""
    name, comma, rest = text.partition(",")
    key, equals, value = rest.partition("=")
    if not name or not comma or not equals or not key or not value:
        raise ValueError(f"expected '<cache name>,<key>=<value>', got: {text}")
    if name != "local" or key != "size":
        raise ValueError(f"the only cache is 'local', and its only setting 'size', got: {text}")
    return False, _int(value)


def _old_cache_option(text: str) -> tuple[bool, int]:
    return True, _int(text)


_TRACE_LEVELS = {
    **dict.fromkeys(("false", "off"), "OFF"),
    **dict.fromkeys(("true", "on", "min", "max", "timestamps"), "TIMESTAMPS"),
    "tensors": "TENSORS",
}


def _trace_level(text: str) -> str:
    level = _TRACE_LEVELS.get(text.lower())
    if level is None:
        raise ValueError(f"invalid value for trace level option: {text}; OFF, TIMESTAMPS or TENSORS is needed")
    return level


def _trace_mode(text: str) -> str:
    mode = text.lower()
    if mode == "opentelemetry":
        raise ValueError("trace mode 'opentelemetry' is not supported by this version of modserve, only 'triton' is")
    if mode != "triton":
        raise ValueError(
            f'invalid value for trace mode option: {text}. Available options are "triton" and "opentelemetry"'
        )
    return mode


_TRACE_SETTINGS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "level": ("trace_level", _trace_level),
    "rate": ("trace_rate", _int),
    "count": ("trace_count", _int),
    "mode": ("", _trace_mode),
    "triton,file": ("trace_file", str),
    "triton,log-frequency": ("trace_log_frequency", _int),
}
"""The field for a setting of ``--trace-config``, empty where nothing follows from it, and how it is read."""


def _one_trace_level(text: str) -> tuple[str, Any]:
    return "trace_level", _trace_level(text)


def _trace_config(text: str) -> tuple[str, Any]:
    """``<setting>=<value>`` or ``<mode>,<setting>=<value>`` as field and value."""
    where, equals, value = text.partition("=")
    mode, comma, setting = where.rpartition(",")
    if not (equals and setting and value) or (comma and not mode):
        raise ValueError(
            f"--trace-config option format is '<trace mode>,<setting>=<value>' or '<setting>=<value>'. Got {text}"
        )
    name = f"{_trace_mode(mode)},{setting}" if comma else setting
    if name not in _TRACE_SETTINGS:
        raise ValueError(f"unknown trace setting '{where}'; allowed are {', '.join(_TRACE_SETTINGS)}")
    field, parse = _TRACE_SETTINGS[name]
    return field, parse(value)


def _restriction(word: str, text: str) -> list[tuple[str, str, str]]:
    """``<category>,<category>:<header>=<value>`` as categories with header and value."""
    names, colon, rest = text.partition(":")
    header, equals, value = rest.partition("=")
    if not (names and colon and header and equals and value):
        raise ValueError(f"expected '<{word}>,<{word}>:<header>=<value>', got: {text}")
    known = get_args(RestrictedCategory)
    for name in names.split(","):
        if name not in known:
            raise ValueError(f"unknown restricted {word} '{name}'; allowed are {', '.join(known)}")
    return [(name, header, value) for name in names.split(",")]


_restricted_api = functools.partial(_restriction, "api")
_restricted_protocol = functools.partial(_restriction, "protocol")


def _option(name: str, parse: Callable[[str], Any], help_text: str, **more: Any) -> Option:
    return Option(name, more.pop("field", name.replace("-", "_")), parse, help_text, **more)


OPTIONS = {
    option.name: option
    for option in (
        _option("model-repository", str, "a directory of models; may be given several times", repeatable=True),
        _option("model-store", str, "the same as --model-repository", repeatable=True, field="model_repository"),
        _option("supervise", _bool, "start the server as a child process, and again when it crashes", flag=True),
        _option("id", str, "the server's name in its metadata"),
        _option("exit-on-error", _bool, "stop if a model fails to load at the start"),
        _option("exit-timeout-secs", _int, "how long to wait for what is in flight when stopping"),
        _option("strict-readiness", _bool, "be ready only when every model is"),
        _option(
            "model-control-mode",
            str,
            "none: load all models at the start; explicit: load those a client asks for; poll: follow the repositories",
        ),
        _option("load-model", str, "a model to load at the start in mode explicit; '*' for all", repeatable=True),
        _option("repository-poll-secs", _int, "seconds between two looks at the repositories in mode poll"),
        _option("model-load-retry-count", _int, "how often a load that failed is tried again"),
        _option("model-load-thread-count", _int, "how many model versions load at the same time"),
        _option(
            "disable-auto-complete-config",
            _bool,
            "fill in nothing that a config.pbtxt leaves out",
            repeatable=True,
            flag=True,
        ),
        _option(
            "strict-model-config",
            _bool,
            "the same as --disable-auto-complete-config",
            repeatable=True,
            field="disable_auto_complete_config",
        ),
        _option(
            "backend-config",
            _backend_option,
            "<backend>,<key>=<value>, an option of a backend; <key>=<value> for all of them",
            repeatable=True,
        ),
        _option(
            "cache-config",
            _cache_option,
            "local,size=<bytes>, room for responses of models with response_cache",
            repeatable=True,
        ),
        _option(
            "response-cache-byte-size", _old_cache_option, "the same, deprecated", field="cache_config", repeatable=True
        ),
        _option(
            "request-memory-limit",
            _int,
            "the bytes that all requests together may hold; 0: any number. By default half of what the container, or "
            "the machine, has",
        ),
        _option("allow-client-shm", _bool, "let clients register shared memory, and put tensors there"),
        _option("allow-http", _bool, "serve HTTP"),
        _option("http-address", str, "the address HTTP listens on"),
        _option("http-port", _int, "the port HTTP listens on; 0 takes a free one"),
        _option("http-max-input-size", _int, "the longest JSON accepted in a request, in bytes"),
        _option(
            "http-max-connections",
            _int,
            "HTTP connections at the same time; fewer if the process may not open enough files; 0: as many as it may",
        ),
        _option("http-idle-timeout", _int, "seconds an HTTP connection without a request stays open; 0: for ever"),
        _option(
            "http-client-timeout",
            _int,
            "seconds a client may take to finish a head, to send more of a body, or to read more of a response; 0: for "
            "ever",
        ),
        _option("reuse-http-port", _bool, "share the HTTP port with other servers that do as well"),
        _option("http-header-forward-pattern", str, "regular expression: headers that become request parameters"),
        _option("http-cors-allow-origin", str, "an origin whose pages may call; * for any", repeatable=True),
        _option(
            "http-restricted-api",
            _restricted_api,
            "<api>,<api>:<header>=<value>, HTTP calls that need a header",
            repeatable=True,
        ),
        _option("http-use-ssl", _bool, "serve HTTPS, with the certificates of gRPC if there are no others"),
        _option("http-use-ssl-mutual", _bool, "serve HTTPS to clients with a certificate"),
        _option("http-server-cert", str, "PEM file with the server's certificate; that of gRPC if not given"),
        _option("http-server-key", str, "PEM file with the certificate's key; that of gRPC if not given"),
        _option("http-root-cert", str, "PEM file with clients' root certificates; that of gRPC if not given"),
        _option("allow-grpc", _bool, "serve gRPC"),
        _option("grpc-address", str, "the address gRPC listens on"),
        _option("grpc-port", _int, "the port gRPC listens on; 0 takes a free one"),
        _option("reuse-grpc-port", _bool, "share the gRPC port with other servers that do as well"),
        _option("grpc-header-forward-pattern", str, "regular expression: metadata that become request parameters"),
        _option(
            "grpc-restricted-protocol",
            _restricted_protocol,
            "<protocol>,<protocol>:<header>=<value>, gRPC calls that need the header triton-grpc-protocol-<header>",
            repeatable=True,
        ),
        _option("grpc-use-ssl", _bool, "serve gRPC over TLS"),
        _option("grpc-use-ssl-mutual", _bool, "serve gRPC over TLS to clients with a certificate"),
        _option("grpc-server-cert", str, "PEM file with the server's certificate"),
        _option("grpc-server-key", str, "PEM file with the certificate's key"),
        _option("grpc-root-cert", str, "PEM file with clients' root certificates"),
        _option("grpc-infer-response-compression-level", str, "none, low, medium or high"),
        _option(
            "grpc-max-message-size",
            _int,
            "the longest message accepted from a client, in bytes; 0: any length. By default an eighth of what the "
            "container, or the machine, has, and 2 GiB at most",
        ),
        _option(
            "grpc-max-concurrent-streams",
            _int,
            "calls that a client may have open on one connection; 0 for any number",
        ),
        _option("grpc-keepalive-time", _int, "milliseconds after which a silent client is sent a ping"),
        _option("grpc-keepalive-timeout", _int, "milliseconds a client may take to answer it"),
        _option("grpc-keepalive-permit-without-calls", _bool, "send pings without calls in flight, too"),
        _option("grpc-http2-max-pings-without-data", _int, "pings sent with no data in between; 0 for any number"),
        _option(
            "grpc-http2-min-recv-ping-interval-without-data",
            _int,
            "milliseconds between a client's pings without data; more of them are strikes",
        ),
        _option("grpc-http2-max-ping-strikes", _int, "strikes a client may have; 0 for any number"),
        _option("grpc-max-connection-age", _int, "milliseconds until a connection is told to end; 0 for never"),
        _option("grpc-max-connection-age-grace", _int, "milliseconds its calls may still take; 0 for ever"),
        _option("allow-metrics", _bool, "serve Prometheus metrics"),
        _option("metrics-address", str, "the address metrics are served on; that of HTTP if not given"),
        _option("metrics-port", _int, "the port metrics are served on; 0 takes a free one"),
        _option(
            "event-loop-warning-ms",
            _int,
            "when the event loop is held for so many milliseconds, log by what; 0: never",
        ),
        _option("server-timing", _bool, "tell with each answer what it has cost (Server-Timing)"),
        _option("log-verbose", _verbosity, "log debugging messages if above 0"),
        _option("log-info", _bool, "log informational messages"),
        _option("log-warning", _bool, "log warnings"),
        _option("log-error", _bool, "log errors"),
        _option("log-format", str, "how log lines look: ISO8601, or default, which is Triton's"),
        _option("log-file", str, "a file to which log lines are added, in place of standard error"),
        _option(
            "trace-config",
            _trace_config,
            "level=, rate=, count=, mode=, triton,file= or triton,log-frequency= and a value",
            field="trace_level",
            repeatable=True,
        ),
        _option("trace-level", _one_trace_level, "OFF, TIMESTAMPS or TENSORS; several add up", repeatable=True),
        _option("trace-rate", _int, "every how many requests one is traced"),
        _option("trace-count", _int, "how many requests are traced; -1: any number"),
        _option("trace-log-frequency", _int, "how many traces a file has; 0: all in one"),
        _option("trace-file", str, "where traces are written"),
    )
}

_NO_GPU_METRICS = "the metrics page has no figures of GPUs or of the machine; node and GPU exporters do"
_NO_POOLS = "memory comes from the system, there are no pools to be sized"
_OWN_THREADS = "requests are handled on one event loop, and models run on threads of their own"
_NO_ENDPOINT = "the endpoints of SageMaker and Vertex AI are not served; those of KServe v2 are"

WITHOUT_EFFECT: Mapping[str, str] = {
    "allow-cpu-metrics": _NO_GPU_METRICS,
    "allow-gpu-metrics": _NO_GPU_METRICS,
    "allow-sagemaker": _NO_ENDPOINT,
    "allow-vertex-ai": _NO_ENDPOINT,
    "backend-directory": "backends are installed as Python packages",
    "buffer-manager-thread-count": _OWN_THREADS,
    "cache-directory": "the response cache is built in, see --cache-config",
    "cuda-memory-pool-byte-size": _NO_POOLS,
    "cuda-virtual-address-size": _NO_POOLS,
    "enable-peer-access": "no memory is copied between GPUs",
    "grpc-infer-allocation-pool-size": _NO_POOLS,
    "grpc-infer-thread-count": _OWN_THREADS,
    "grpc-max-response-pool-size": _NO_POOLS,
    "host-policy": "threads are not bound to cores or NUMA nodes; numactl and taskset do that",
    "http-thread-count": _OWN_THREADS,
    "metrics-config": "histograms of latencies are always there, and there are no summaries",
    "metrics-interval-ms": "metrics are read when they are asked for",
    "min-supported-compute-capability": "the engine decides on which GPUs it runs",
    "model-load-gpu-limit": "what a model may take of a GPU is the engine's to say",
    "model-namespacing": "names of models must be unique over all repositories; those that are not do not load",
    "pinned-memory-pool-byte-size": _NO_POOLS,
    "repoagent-directory": "there are no repository agents; models that ask for one do not load",
    "sagemaker-port": _NO_ENDPOINT,
    "sagemaker-safe-port-range": _NO_ENDPOINT,
    "sagemaker-thread-count": _NO_ENDPOINT,
    "vertex-ai-default-model": _NO_ENDPOINT,
    "vertex-ai-port": _NO_ENDPOINT,
    "vertex-ai-thread-count": _NO_ENDPOINT,
}
"""tritonserver's options whose absence harms nobody, and why: accepted with a warning, so that scripts still work."""

_NO_RATE_LIMIT = "there is no rate limiter, and models would run at times at which they must not"

NOT_SUPPORTED: Mapping[str, str] = {
    "model-config-name": "other configurations than config.pbtxt are not read, and models would run with the wrong one",
    "rate-limit": _NO_RATE_LIMIT,
    "rate-limit-resource": _NO_RATE_LIMIT,
}
"""tritonserver's options that would change what the server does, and what would go wrong without: refused.

Only those that switch such a thing off are taken, for off it is.
"""

_SWITCHES = frozenset({"allow-sagemaker", "allow-vertex-ai", "model-namespacing"})
"""Those without effect of which nothing is said when they switch it off."""
_OFF: Mapping[str, str] = {"rate-limit": "off"}
"""Those that are refused unless they have this value."""

HEADINGS: Mapping[str, str] = {
    "model-repository": "models and server",
    "request-memory-limit": "limits and memory",
    "allow-http": "HTTP",
    "allow-grpc": "gRPC",
    "allow-metrics": "metrics and timing",
    "log-verbose": "log",
    "trace-config": "traces",
}
"""The headings of ``--help``, by the option that comes first below each."""

_OTHER_NAMES: Mapping[str, str] = {
    "address": "http-address",
    "host": "http-address",
    "model": "model-repository",
    "models": "model-repository",
    "model-dir": "model-repository",
    "port": "http-port",
}
"""What people write who do not know an option's name."""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What a command line says: settings, and warnings about what was taken without effect."""

    settings: Settings
    warnings: tuple[str, ...] = ()


def from_command_line(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> CommandLine:
    """Read ``--name value``, ``--name=value`` and unambiguous prefixes of names, over what the environment says.

    Raises OptionError; its text names the option and, for a misspelled one, the nearest.
    """
    values, warnings = _environment(os.environ if environment is None else environment)
    given: dict[str, Any] = {}
    remaining = list(arguments)
    while remaining:
        argument = remaining.pop(0)
        if not argument.startswith("--"):
            raise OptionError(f"Unexpected argument: {argument}")
        spelled, equals, text = argument[2:].partition("=")
        name = _resolve(spelled)
        option = OPTIONS.get(name)
        if option is not None and option.flag and not equals:
            text = "true"
        elif not equals:
            if not remaining:
                raise OptionError(f"option '--{name}' requires a value")
            text = remaining.pop(0)
        if option is not None:
            _take(given, option, text, f"option '--{name}'")
        elif _matters(name, text, f"option '--{name}'"):
            warnings.append(f"option '--{name}' has no effect in modserve: {WITHOUT_EFFECT[name]}")
    try:
        settings = Settings(**_assembled({**values, **given}))
    except ValidationError as error:
        raise OptionError(_explained(error)) from None
    return CommandLine(settings, tuple(dict.fromkeys(warnings)))


_PREFIX = "MODSERVE_"
_LINK = re.compile(r"[a-z]+://\S+:\d+", re.ASCII)
"""The value of the variable ``X_PORT`` that Kubernetes and Docker set for a service called x."""
_LINKED = re.compile(r"MODSERVE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
"""The names of the other variables that they set, for a service called modserve or modserve-…"""


def _environment(environment: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """What the environment says of options, and warnings about what it says in vain."""
    options = {_PREFIX + name.upper().replace("-", "_"): name for name in (*OPTIONS, *WITHOUT_EFFECT, *NOT_SUPPORTED)}
    values: dict[str, Any] = {}
    warnings = []
    for variable, text in environment.items():
        if not variable.startswith(_PREFIX) or _LINKED.fullmatch(variable):
            continue
        name = options.get(variable)
        if variable.endswith("_PORT") and _LINK.fullmatch(text):
            if name is not None:
                service = variable.removesuffix("_PORT").lower().replace("_", "-")
                warnings.append(
                    f"environment variable {variable}={text} is ignored: it is what Kubernetes sets for a service "
                    f"called {service}; '--{name}' or 'enableServiceLinks: false' in the pod avoids the clash"
                )
        elif name is None:
            nearest = difflib.get_close_matches(variable, options, n=1, cutoff=0.8)
            hint = f"; did you mean {nearest[0]}?" if nearest and options[nearest[0]] in OPTIONS else ""
            warnings.append(f"environment variable {variable} is ignored: there is no such option{hint}")
        elif name in OPTIONS:
            _take(values, OPTIONS[name], text, f"environment variable {variable}")
        elif _matters(name, text, f"environment variable {variable}"):
            warnings.append(f"environment variable {variable} has no effect in modserve: {WITHOUT_EFFECT[name]}")
    return values, warnings


def _resolve(spelled: str) -> str:
    """The option that a name, or the beginning of one, stands for. Raises OptionError."""
    known = (*OPTIONS, *WITHOUT_EFFECT, *NOT_SUPPORTED)
    name = spelled.replace("_", "-")
    if name not in known:
        matches = [candidate for candidate in known if name and candidate.startswith(name)]
        if not matches or name in _OTHER_NAMES:
            _unknown(spelled)
        if len(matches) > 1:
            listed = ", ".join(f"--{match}" for match in sorted(matches))
            raise OptionError(f"option '--{spelled}' is ambiguous: {listed}")
        name = matches[0]
    return name


def _matters(name: str, text: str, where: str) -> bool:
    """Whether something has to be said about an option that does nothing here, for its value `text` asks for it.

    Raises OptionError for one that is not supported, unless it says that it is not wanted.
    """
    if name in _SWITCHES:
        try:
            return _bool(text)
        except ValueError as error:
            raise OptionError(f"{where}: {error}") from None
    if name in WITHOUT_EFFECT:
        return True
    if text.lower() == _OFF.get(name):
        return False
    raise OptionError(f"{where}: not supported by this version of modserve: {NOT_SUPPORTED[name]}")


def _unknown(spelled: str) -> NoReturn:
    """Raises OptionError, which suggests none but options that work."""
    name = spelled.replace("_", "-")
    nearest = [_OTHER_NAMES[name]] if name in _OTHER_NAMES else difflib.get_close_matches(name, OPTIONS, 1, 0.6)
    hint = f"; did you mean '--{nearest[0]}'?" if nearest else "; 'modserve --help' lists all options"
    raise OptionError(f"unknown option '--{spelled}'{hint}")


def _take(values: dict[str, Any], option: Option, text: str, where: str) -> None:
    try:
        value = option.parse(text)
    except ValueError as error:
        raise OptionError(f"{where}: {error}") from None
    if option.repeatable:
        values.setdefault(option.field, []).append(value)
    else:
        values[option.field] = value


def _assembled(values: dict[str, Any]) -> dict[str, Any]:
    triples = values.pop("backend_config", None)
    if triples:
        backends: dict[str, dict[str, str]] = {}
        for name, key, value in triples:
            backends.setdefault(name, {})[key] = value
        values["backend_config"] = backends
    if "cache_config" in values:
        old, sizes = zip(*values["cache_config"], strict=True)
        if len(set(old)) > 1:
            raise OptionError(
                "Incompatible flags --response-cache-byte-size and --cache-config both provided. Please provide one or "
                "the other."
            )
        values["cache_config"] = sizes[-1]
    if "disable_auto_complete_config" in values:
        # Two options, of which tritonserver lets win the one that switches it off.
        values["disable_auto_complete_config"] = any(values["disable_auto_complete_config"])
    if "trace_level" in values:
        given = values.pop("trace_level")
        # Deprecated options give way to --trace-config, as in tritonserver; levels add up.
        values.update({field: value for field, value in given if field not in ("", "trace_level")})
        values["trace_level"] = tuple(dict.fromkeys(value for field, value in given if field == "trace_level"))
    for field, word in (("http_restricted_api", "api"), ("grpc_restricted_protocol", "protocol")):
        if field in values:
            values[field] = _restrictions(field, word, values[field])
    return values


def _restrictions(field: str, word: str, groups: Sequence[Sequence[tuple[str, str, str]]]) -> dict[str, Any]:
    found: dict[str, tuple[str, str]] = {}
    for name, header, value in itertools.chain.from_iterable(groups):
        if name in found:
            option = field.replace("_", "-")
            raise OptionError(
                f"option '--{option}': restricted {word} '{name}' can not be specified in multiple config groups"
            )
        found[name] = header, value
    return found


def _explained(error: ValidationError) -> str:
    lines = []
    for problem in error.errors():
        name = str(problem["loc"][0]).replace("_", "-") if problem["loc"] else ""
        if not problem["loc"]:
            lines.append(problem["msg"].removeprefix("Value error, "))
        elif problem["type"] == "missing":
            lines.append("no model repository given; say '--model-repository DIR'")
        elif name == "model-repository":
            lines.append(problem["msg"].removeprefix("Value error, "))
        else:
            said = problem["msg"].removeprefix("Value error, ")
            lines.append(f"option '--{name}': {said}, got: {problem['input']}")
    return "\n".join(lines)
