"""Every setting of a server, and the one place that reads the command line and the environment.

`Settings` is what the library takes. The command line's options are a table over its fields, spelled as tritonserver
spells them; each can also be given in the environment as ``MODSERVE_`` and its name in capitals.
"""

import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

Port = Annotated[int, Field(ge=0, le=65535)]


def _paths(value: object) -> object:
    """One path or several: a set, as tritonserver treats a repeated --model-repository."""
    if isinstance(value, str | Path):
        value = [value]
    return tuple(dict.fromkeys(value)) if isinstance(value, list | tuple) else value


class Settings(BaseModel):
    """How a server runs. All fields have defaults but for `model_repository`; times are in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model_repository: Annotated[tuple[Path, ...], BeforeValidator(_paths), Field(min_length=1)]
    """Directories of models."""
    id: str = "modserve"
    """The server's name in its metadata."""
    exit_on_error: bool = False
    """Stop if a model fails to load at the start, instead of serving the others."""
    exit_timeout_secs: Annotated[int, Field(ge=0)] = 30
    """How long a stopping server waits for what is in flight."""
    strict_readiness: bool = True
    """Be ready only when every model is; otherwise as soon as the first load is over."""
    model_control_mode: Literal["none"] = "none"
    """Which models are loaded when; none: all at the start, no changes later."""
    model_load_thread_count: Annotated[int, Field(ge=1)] = 4
    """How many model versions load at the same time."""
    disable_auto_complete_config: bool = False
    """Fill in nothing that a config.pbtxt leaves out."""
    backend_config: Mapping[str, Mapping[str, str]] = Field(default_factory=dict)
    """Options by backend name."""

    allow_http: bool = True
    http_address: str = "0.0.0.0"
    http_port: Port = 8000
    http_max_input_size: Annotated[int, Field(ge=1)] = 64 * 1024 * 1024
    """The longest JSON accepted in a request, in bytes; binary tensor data is not limited."""

    allow_grpc: bool = True
    grpc_address: str = "0.0.0.0"
    grpc_port: Port = 8001

    allow_metrics: bool = True
    metrics_address: str = ""
    """The HTTP address if empty."""
    metrics_port: Port = 8002

    log_verbose: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0
    log_info: bool = True
    log_warning: bool = True
    log_error: bool = True
    log_format: Literal["default", "ISO8601"] = "ISO8601"
    """How log lines look; default: as Triton's do by default."""


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
    name, comma, rest = text.partition(",")
    key, equals, value = rest.partition("=")
    if not comma or not equals or not key:
        raise ValueError(f"expected '<backend name>,<key>=<value>', got: {text}")
    return name, key, value


def _option(name: str, parse: Callable[[str], Any], help_text: str, **more: Any) -> Option:
    return Option(name, more.pop("field", name.replace("-", "_")), parse, help_text, **more)


OPTIONS = {
    option.name: option
    for option in (
        _option("model-repository", str, "a directory of models; may be given several times", repeatable=True),
        _option("model-store", str, "the same as --model-repository", repeatable=True, field="model_repository"),
        _option("id", str, "the server's name in its metadata"),
        _option("exit-on-error", _bool, "stop if a model fails to load at the start"),
        _option("exit-timeout-secs", _int, "how long to wait for what is in flight when stopping"),
        _option("strict-readiness", _bool, "be ready only when every model is"),
        _option("model-control-mode", str, "none: load all models at the start"),
        _option("model-load-thread-count", _int, "how many model versions load at the same time"),
        _option("disable-auto-complete-config", _bool, "fill in nothing that a config.pbtxt leaves out", flag=True),
        _option("backend-config", _backend_option, "<backend>,<key>=<value>, an option of a backend", repeatable=True),
        _option("allow-http", _bool, "serve HTTP"),
        _option("http-address", str, "the address HTTP listens on"),
        _option("http-port", _int, "the port HTTP listens on; 0 takes a free one"),
        _option("http-max-input-size", _int, "the longest JSON accepted in a request, in bytes"),
        _option("allow-grpc", _bool, "serve gRPC"),
        _option("grpc-address", str, "the address gRPC listens on"),
        _option("grpc-port", _int, "the port gRPC listens on; 0 takes a free one"),
        _option("allow-metrics", _bool, "serve Prometheus metrics"),
        _option("metrics-address", str, "the address metrics are served on; that of HTTP if not given"),
        _option("metrics-port", _int, "the port metrics are served on; 0 takes a free one"),
        _option("log-verbose", _verbosity, "log debugging messages if above 0"),
        _option("log-info", _bool, "log informational messages"),
        _option("log-warning", _bool, "log warnings"),
        _option("log-error", _bool, "log errors"),
        _option("log-format", str, "how log lines look: ISO8601, or default, which is Triton's"),
    )
}

WITHOUT_EFFECT = frozenset(
    {
        "allow-cpu-metrics",
        "allow-gpu-metrics",
        "backend-directory",
        "buffer-manager-thread-count",
        "cuda-memory-pool-byte-size",
        "cuda-virtual-address-size",
        "enable-peer-access",
        "grpc-infer-allocation-pool-size",
        "grpc-infer-thread-count",
        "grpc-max-response-pool-size",
        "http-thread-count",
        "metrics-interval-ms",
        "min-supported-compute-capability",
        "model-load-gpu-limit",
        "pinned-memory-pool-byte-size",
        "sagemaker-port",
        "sagemaker-safe-port-range",
        "sagemaker-thread-count",
        "strict-model-config",
        "vertex-ai-default-model",
        "vertex-ai-port",
        "vertex-ai-thread-count",
    }
)
"""tritonserver's options that tune what modserve does not have: accepted with a warning, so that scripts still work."""

NOT_SUPPORTED = frozenset(
    {
        "allow-client-shm",
        "allow-sagemaker",
        "allow-vertex-ai",
        "cache-config",
        "cache-directory",
        "grpc-header-forward-pattern",
        "grpc-http2-max-ping-strikes",
        "grpc-http2-max-pings-without-data",
        "grpc-http2-min-recv-ping-interval-without-data",
        "grpc-infer-response-compression-level",
        "grpc-keepalive-permit-without-calls",
        "grpc-keepalive-time",
        "grpc-keepalive-timeout",
        "grpc-max-connection-age",
        "grpc-max-connection-age-grace",
        "grpc-restricted-protocol",
        "grpc-root-cert",
        "grpc-server-cert",
        "grpc-server-key",
        "grpc-use-ssl",
        "grpc-use-ssl-mutual",
        "host-policy",
        "http-header-forward-pattern",
        "http-restricted-api",
        "load-model",
        "log-file",
        "metrics-config",
        "model-config-name",
        "model-load-retry-count",
        "model-namespacing",
        "rate-limit",
        "rate-limit-resource",
        "repoagent-directory",
        "repository-poll-secs",
        "response-cache-byte-size",
        "reuse-grpc-port",
        "reuse-http-port",
        "trace-config",
        "trace-count",
        "trace-file",
        "trace-level",
        "trace-log-frequency",
        "trace-rate",
    }
)
"""tritonserver's options that would change what the server does; refused, since ignoring them could hurt.

Only those that switch such a thing off are taken, for off it is.
"""

_SWITCHES = frozenset(
    {
        "allow-client-shm",
        "allow-sagemaker",
        "allow-vertex-ai",
        "grpc-use-ssl",
        "grpc-use-ssl-mutual",
        "model-namespacing",
        "reuse-grpc-port",
        "reuse-http-port",
    }
)


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What a command line says: settings, and the options that were taken without effect."""

    settings: Settings
    without_effect: tuple[str, ...] = ()


def from_command_line(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> CommandLine:
    """Read ``--name value``, ``--name=value`` and unambiguous prefixes of names, over what the environment says.

    Raises OptionError; its text names the option and, for a misspelled one, the nearest.
    """
    values: dict[str, Any] = {}
    for name, text in _environment(os.environ if environment is None else environment):
        _take(values, OPTIONS[name], text, f"environment variable MODSERVE_{name.upper().replace('-', '_')}")
    given: dict[str, Any] = {}
    ignored: list[str] = []
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
        if name in NOT_SUPPORTED:
            _check_off(name, text)
        elif option is None:
            ignored.append(name)
        else:
            _take(given, option, text, f"option '--{name}'")
    try:
        return CommandLine(Settings(**_assembled({**values, **given})), tuple(dict.fromkeys(ignored)))
    except ValidationError as error:
        raise OptionError(_explained(error)) from None


def _environment(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    variables = {"MODSERVE_" + name.upper().replace("-", "_"): name for name in OPTIONS}
    return [(variables[key], text) for key, text in environment.items() if key in variables]


def _resolve(spelled: str) -> str:
    known = (*OPTIONS, *WITHOUT_EFFECT, *NOT_SUPPORTED)
    name = spelled.replace("_", "-")
    if name not in known:
        matches = [candidate for candidate in known if name and candidate.startswith(name)]
        if len(matches) > 1:
            listed = ", ".join(f"--{match}" for match in sorted(matches))
            raise OptionError(f"option '--{spelled}' is ambiguous: {listed}")
        if not matches:
            _unknown(spelled, known)
        name = matches[0]
    return name


def _check_off(name: str, text: str) -> None:
    """Raises for an option that is not supported, unless it says that it is not wanted."""
    if name in _SWITCHES:
        try:
            wanted = _bool(text)
        except ValueError as error:
            raise OptionError(f"option '--{name}': {error}") from None
        if not wanted:
            return
    raise OptionError(f"option '--{name}' of tritonserver is not supported by this version of modserve")


def _unknown(spelled: str, known: Sequence[str]) -> NoReturn:
    nearest = difflib.get_close_matches(spelled, known, n=1, cutoff=0.5)
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
    return values


def _explained(error: ValidationError) -> str:
    lines = []
    for problem in error.errors():
        name = str(problem["loc"][0]).replace("_", "-") if problem["loc"] else ""
        if name == "model-repository":
            lines.append("no model repository given; say '--model-repository DIR'")
        else:
            lines.append(f"option '--{name}': {problem['msg']}, got: {problem['input']}")
    return "\n".join(lines)
