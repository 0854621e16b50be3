"""Settings of HTTP and gRPC: addresses, access, TLS, and the requirements of SageMaker and Vertex AI."""

import os
import re
import tempfile
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, SecretStr
from pydantic.dataclasses import dataclass as validated_dataclass

from modserve.core.runtime import unix_socket
from modserve.core.secret_names import KEY_VARIABLE

from . import setting_types
from .limits import LoopLimits
from .options import option
from .setting_types import Count, Milliseconds, Port


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. With `mutual`, clients must present a certificate signed by one in `root`."""

    certificate: Path
    """The server's certificate, followed by intermediate certificates."""
    key: Path
    root: Path | None = None
    mutual: bool = False

    @property
    def paths(self) -> tuple[Path, ...]:
        return (self.certificate, self.key) if self.root is None else (self.certificate, self.key, self.root)


FILE: Any = option(
    "",
    "File of keys, tenants, token issuers and certificates, written by 'modserve keys'; reloaded when it changes. "
    f"The variable {KEY_VARIABLE} adds a key with all rights.",
    section="access",
)


def _open(value: object) -> object:
    return {each for each in value if each != "none"} if isinstance(value, list | tuple | set | frozenset) else value


Open: TypeAlias = Annotated[frozenset[Literal["health", "metrics"]], BeforeValidator(_open)]
OPEN: Any = option(
    frozenset({"health"}),
    "Calls that need no key: health of the server, metrics, or none; repeatable.",
    value="health|metrics|none",
    several=True,
    default_in_words="health",
)
Key: TypeAlias = SecretStr | None


def variable(environment: Any) -> dict[str, str]:
    """Return the keyword for a key in the environment, if there is one."""
    return {"api_key": environment[KEY_VARIABLE]} if environment.get(KEY_VARIABLE) else {}


_ADMIN = re.compile(r"(?P<host>|\[[0-9A-Fa-f:.]+\]|[^\s/?#,@:\[\]]+):(?P<port>[0-9]{1,5})")


def _address(text: str) -> str:
    """Parse an address; undocumented in the help: an inherited socket."""
    unix_socket.check(text)
    return text


def _admin_address(text: str) -> str:
    if not text or unix_socket.is_socket(text):
        return _address(text)
    match = _ADMIN.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise ValueError(f"'{text}' is not an address; expected HOST:PORT, :PORT or unix:PATH")
    return text


Address = Annotated[str, AfterValidator(_address)]
AdminAddress = Annotated[str, AfterValidator(_admin_address)]
ADMIN: Any = option(
    "",
    "Address for operators, with all calls and metrics: HOST:PORT, :PORT or unix:PATH. Other ports then refuse to load "
    "models, list the repository or change routings and settings, and have no pages for browsers.",
    default_in_words="none",
)
METRICS: Any = option(
    "",
    "Address of the metrics port; unix:PATH for a Unix socket. With --admin-address, the port is closed unless "
    "this or --metrics-port is set.",
    default_in_words="that of HTTP; 127.0.0.1 if that is a Unix socket",
)


Platform: TypeAlias = Literal["none", "sagemaker", "vertex"]

_PORT = "8080"
_SAGEMAKER_MODEL = "/opt/ml/model"
_INFERENCES = ("infer", "generate", "generate_stream")
_OWN_MODELS = ("model_repository", "python_model", "model_file", "example")
"""Settings that select models; with one of them, the platform's models are not served."""


@dataclass(frozen=True, slots=True)
class PlatformRoutes:
    """Paths by which a platform calls the server, and their calls."""

    health: str
    predict: str
    binary_type: str
    """Media type of JSON before binary data, up to the parameter with the JSON's length."""
    redirect_header: str = ""
    """Header that names another call instead of `predict`; empty for none."""
    instances: bool = False
    """True if predictions may also have the form ``{"instances": […]}``."""
    model: str = ""
    """Model for predictions; empty for the only model."""
    model_variable: str = ""
    """Name of the users' variable for it, for messages."""
    call: str = "infer"
    """Call of the model for a prediction."""
    registry: str = ""
    """Directory with records of the models that the platform loads; empty if it loads none."""


def complete(
    fields: MutableMapping[str, Any],
    http: MutableMapping[str, Any],
    grpc: MutableMapping[str, Any],
    environment: Mapping[str, str],
) -> None:
    """Add the consequences of the platform of `http`, if any, to keywords of settings.

    Raises ValueError for a missing or invalid variable.
    """
    completion = {"sagemaker": _sagemaker, "vertex": _vertex}.get(http.get("platform", "none"))
    if completion is not None:
        grpc.setdefault("allow", "port" in grpc)
        http["routes"] = completion(fields, http, environment)


def _sagemaker(
    fields: MutableMapping[str, Any], http: MutableMapping[str, Any], environment: Mapping[str, str]
) -> PlatformRoutes:
    http.setdefault("port", _port(environment, "SAGEMAKER_BIND_TO_PORT"))
    fields.setdefault("allow_metrics", "metrics_port" in fields)
    call = environment.get("SAGEMAKER_TRITON_INFERENCE_TYPE") or "infer"
    if call not in _INFERENCES:
        raise ValueError(f"SAGEMAKER_TRITON_INFERENCE_TYPE is {call}, expected one of: {', '.join(_INFERENCES)}")
    registry = ""
    if environment.get("SAGEMAKER_MULTI_MODEL", "").lower() == "true":
        registry = _registry()
        _default_models(fields, registry)
        fields.setdefault("model_control_mode", "explicit")
        fields.setdefault("allow_outside_symlinks", True)
    else:
        _default_models(fields, _SAGEMAKER_MODEL)
    variable = "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"
    return PlatformRoutes(
        health="/ping",
        predict="/invocations",
        binary_type="application/vnd.sagemaker-triton.binary+json;json-header-size=",
        model=environment.get(variable, ""),
        model_variable=variable,
        call=call,
        registry=registry,
    )


def _vertex(
    fields: MutableMapping[str, Any], http: MutableMapping[str, Any], environment: Mapping[str, str]
) -> PlatformRoutes:
    http.setdefault("port", _port(environment, "AIP_HTTP_PORT"))
    if place := environment.get("AIP_STORAGE_URI"):
        _default_models(fields, place)
    return PlatformRoutes(
        health=_route(environment, "AIP_HEALTH_ROUTE"),
        predict=_route(environment, "AIP_PREDICT_ROUTE"),
        binary_type="application/vnd.vertex-ai-triton.binary+json;json-header-size=",
        redirect_header="x-vertex-ai-triton-redirect",
        instances=True,
        model=http.get("vertex_ai_default_model", ""),
        model_variable="--vertex-ai-default-model",
    )


def _default_models(fields: MutableMapping[str, Any], place: str) -> None:
    if not any(fields.get(name) for name in _OWN_MODELS):
        fields["model_repository"] = place


def _port(environment: Mapping[str, str], variable: str) -> int:
    text = environment.get(variable) or _PORT
    if not (text.isascii() and text.isdigit() and 0 <= int(text) < 65536):
        raise ValueError(f"environment variable {variable} is no port: {text}")
    return int(text)


def _route(environment: Mapping[str, str], variable: str) -> str:
    path = environment.get(variable, "")
    if not path.startswith("/"):
        reason = f"is no path: {path}" if path else "is not set, as Vertex AI sets it"
        raise ValueError(f"option '--platform': environment variable {variable} {reason}")
    return path


def _registry() -> str:
    """Return an initially empty repository. Raises ValueError if another user may write to it."""
    path = Path(tempfile.gettempdir()) / "modserve-sagemaker"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        is_own = path.stat().st_uid == os.getuid()
    except OSError as error:
        raise ValueError(f"cannot make the directory {path} for SageMaker's models: {error.strerror}") from None
    if not is_own:
        raise ValueError(f"{path}, the directory for SageMaker's models, belongs to another user")
    return str(path)


_PORT_HELP = "Port that {} listens on; 0 takes a free one."


@validated_dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class FrontEndSettings:
    """Common settings of HTTP and gRPC."""

    allow: bool = option(True, "Serve {}.", "allow-{}")
    address: Address = option("0.0.0.0", "Address that {} listens on; unix:PATH for a Unix socket.")
    port: Port = 0
    reuse_port: bool = option(
        False,
        "Share the {} port with other servers that have this option; this one listens once its models have loaded.",
        "reuse-{}-port",
    )
    header_pattern: setting_types.HeaderPattern = option(
        None,
        "Regular expression of {} headers that become parameters of inference requests.",
        "{}-header-forward-pattern",
        value="REGEX",
    )
    restrictions: setting_types.Restrictions = Field(default_factory=dict)
    """Restrictions by category of calls."""
    use_ssl: bool = option(False, "Serve {} over TLS only.")
    use_ssl_mutual: bool = option(False, "Serve {} over TLS only, to clients with a valid certificate.")
    server_cert: str = option("", "PEM file with the server's certificate chain; HTTP uses gRPC's by default.")
    server_key: str = option("", "PEM file with the server's unencrypted private key; HTTP uses gRPC's by default.")
    root_cert: str = option("", "PEM file with the root certificates for clients; HTTP uses gRPC's by default.")
    server_timing: bool = option(
        False, "Report the times of each inference in its response, over HTTP and gRPC.", "server-timing"
    )
    orca: Literal["off", "request", "text", "json", "bin"] = option(
        "off",
        "Report the server's load (ORCA) over gRPC and in an HTTP header; request: in the format that a request names.",
        "orca",
    )
    client_timeout: Count = option(
        60,
        "Seconds that a client may pause in sending a request (then 408, DEADLINE_EXCEEDED) or reading a response "
        "(then disconnected), over HTTP and gRPC; 0: no limit.",
        "http-client-timeout",
    )

    limits: LoopLimits = LoopLimits()
    """Limits of the work on the event loop."""

    def without_secrets(self, keys: Iterable[str]) -> Self:
        """Return settings that never forward headers with keys, or for restricted calls, to models."""
        names = {*keys, *(restriction.name for restriction in self.restrictions.values())}
        if self.header_pattern is None or not names:
            return self
        return replace(self, header_pattern=setting_types.pattern_without(self.header_pattern, names))

    def check_certificates(self, subject: str) -> None:
        """Raise ValueError if a TLS file is missing. `subject`, http or grpc: prefix of the options."""
        if self.tls is None:
            return
        for file in ("server-cert", "server-key", *(["root-cert"] if self.use_ssl_mutual else [])):
            if not getattr(self, file.replace("-", "_")):
                option = f"--{subject}-use-ssl" + ("-mutual" if self.use_ssl_mutual else "")
                files = " or ".join(dict.fromkeys((f"'--{subject}-{file}'", f"'--grpc-{file}'")))
                raise ValueError(f"option '{option}' needs {files}")

    @property
    def tls(self) -> TlsFiles | None:
        """TLS files; None for plain connections."""
        if not self.use_ssl and not self.use_ssl_mutual:
            return None
        root = Path(self.root_cert) if self.root_cert and self.use_ssl_mutual else None
        return TlsFiles(Path(self.server_cert), Path(self.server_key), root, self.use_ssl_mutual)


@validated_dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class HttpSettings(FrontEndSettings):
    """Settings of HTTP; times are in seconds. TLS files default to gRPC's."""

    port: Port = option(8000, _PORT_HELP)
    restrictions: setting_types.HttpRestrictions = option(
        {},
        "Calls at the HTTP and admin ports that need a header; repeatable.",
        "http-restricted-api",
        value="API,…:HEADER=VALUE",
        parse=partial(setting_types.restriction, "api"),
        several=True,
    )
    max_json: Annotated[int, Field(ge=1)] = option(
        64 * 1024 * 1024,
        "Maximum bytes of a request's JSON; --request-memory-limit limits binary tensors.",
        "http-max-input-size",
    )
    max_connections: Count = option(
        10_000,
        "Maximum open connections, also limited by open files (ulimit -n); others get 503; 0: only that limit.",
    )
    idle_timeout: Count = option(620, "Seconds that an idle connection stays open; 0: forever.")
    console: bool = option(True, "Serve the live console, at / and /console.", "console")
    peers: str = option(
        "",
        "Servers that the console shows: URLs, or dns:///NAME:PORT for all addresses of a name.",
        "peers",
        value="URL,…",
    )
    allow_host: setting_types.Hosts = option(
        frozenset(),
        "Host name that browsers may use, besides IP addresses and the machine's names; * for any; repeatable.",
        value="NAME",
        several=True,
    )
    cors_allow_origin: setting_types.Origins = option(
        frozenset(),
        "Origin whose pages may call the server from a browser, * for any; repeatable.",
        value="ORIGIN",
        several=True,
    )
    platform: Platform = option(
        "none",
        "Also serve the calls of Amazon SageMaker's or Google Vertex AI's containers, and read their variables.",
        "platform",
    )
    vertex_ai_default_model: str = option(
        "",
        "Model for Vertex AI's predictions; by default the only one.",
        "vertex-ai-default-model",
        value="NAME",
    )
    routes: PlatformRoutes | None = None
    """Routes of the platform. Not an option."""
    for_operators: bool = False
    """True for a port for operators: no origin is allowed. Not an option."""


@validated_dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class GrpcSettings(FrontEndSettings):
    """Settings of gRPC; times are in milliseconds. Defaults are gRPC's and Triton's."""

    port: Port = option(8001, _PORT_HELP)
    restrictions: setting_types.GrpcRestrictions = option(
        {},
        "gRPC calls that need the header triton-grpc-protocol-HEADER; repeatable.",
        "grpc-restricted-protocol",
        value="PROTOCOL,…:HEADER=VALUE",
        parse=partial(setting_types.restriction, "protocol"),
        several=True,
    )
    compression: setting_types.Compression = option(
        "none",
        "Compress responses for clients that accept it: low: gzip; medium, high: deflate.",
        "grpc-infer-response-compression-level",
    )
    max_message: Annotated[int | None, Field(ge=0, le=2**31 - 1)] = option(
        None,
        "Maximum bytes of a client's message; 0: no limit.",
        "grpc-max-message-size",
        default_in_words="an eighth of the memory, at most 512 MiB",
    )
    max_concurrent_streams: Count = option(
        1_000, "Maximum open calls on a connection; others wait in the client; 0: no limit."
    )
    keepalive_time: Milliseconds = option(7_200_000, "Milliseconds of silence before the server pings a client.")
    keepalive_timeout: Milliseconds = option(
        20_000, "Milliseconds to reply to a ping before the client is disconnected."
    )
    keepalive_permit_without_calls: bool = option(False, "Also send pings on connections without calls.")
    http2_max_pings_without_data: Count = option(
        2, "Maximum pings that the server sends without data in between; 0: no limit."
    )
    http2_min_recv_ping_interval_without_data: Count = option(
        300_000, "Minimum milliseconds between pings of a client that sends no data; an earlier ping is a strike."
    )
    http2_max_ping_strikes: Count = option(2, "Strikes before a client's connection is closed; 0: no limit.")
    max_connection_age: Count = option(0, "Milliseconds before the server asks a client to reconnect; 0: never.")
    max_connection_age_grace: Count = option(
        0, "Milliseconds for calls to end after --grpc-max-connection-age; 0: no limit."
    )
