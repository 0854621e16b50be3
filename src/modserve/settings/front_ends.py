"""The settings of HTTP and gRPC, which are passed to the front ends unchanged."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as validated_dataclass

from . import values
from .addresses import Address
from .limits import LoopLimits
from .options import option
from .platforms import Platform, PlatformRoutes
from .tls import TlsFiles
from .values import Count, Milliseconds, Port

_PORT_HELP = "Port that {} listens on; 0 takes a free one."


@validated_dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class FrontEndSettings:
    """What HTTP and gRPC have in common."""

    allow: bool = option(True, "Serve {}.", "allow-{}")
    address: Address = option("0.0.0.0", "Address that {} listens on; unix:PATH for a Unix socket.")
    port: Port = 0
    reuse_port: bool = option(
        False,
        "Share the {} port with other servers that have this option: it takes connections when the models have loaded.",
        "reuse-{}-port",
    )
    header_pattern: values.HeaderPattern = option(
        None,
        "Regular expression: matching {} headers become parameters of inference requests.",
        "{}-header-forward-pattern",
        value="REGEX",
    )
    restrictions: values.Restrictions = Field(default_factory=dict)
    """By category of calls."""
    use_ssl: bool = option(False, "Serve {} over TLS only.")
    use_ssl_mutual: bool = option(False, "Serve {} over TLS only, to clients with a valid certificate.")
    server_cert: str = option("", "PEM file with the server's certificate chain; HTTP uses gRPC's by default.")
    server_key: str = option("", "PEM file with its unencrypted private key; HTTP uses gRPC's by default.")
    root_cert: str = option("", "PEM file with the root certificates for clients; HTTP uses gRPC's by default.")
    server_timing: bool = option(
        False, "Report the times of each inference with its response, over HTTP and gRPC.", "server-timing"
    )
    orca: Literal["off", "request", "text", "json", "bin"] = option(
        "off",
        "Report the server's load with each response, for load balancers (ORCA): over HTTP in a header of this format, "
        "over gRPC in binary trailers and by a service; request: in the format for which an HTTP request asks, like "
        "Triton.",
        "orca",
    )
    client_timeout: Count = option(
        60,
        "Seconds in which a client must finish a request's head, send more of its body or message (else 408, "
        "DEADLINE_EXCEEDED; five times as long for 16 KiB) or read more of a response (else disconnected), over HTTP "
        "and gRPC; 0: no limit.",
        "http-client-timeout",
    )

    limits: LoopLimits = LoopLimits()
    """How much work is done on the event loop."""

    def without_secrets(self, keys: Iterable[str]) -> Self:
        """Keep headers that open restricted calls, and those with `keys`, from being forwarded to models."""
        names = {*keys, *(restriction.name for restriction in self.restrictions.values())}
        if self.header_pattern is None or not names:
            return self
        return replace(self, header_pattern=values.pattern_without(self.header_pattern, names))

    def check_certificates(self, subject: str) -> None:
        """Raises ValueError if TLS lacks one of its files. `subject`, http or grpc, is the prefix of the options."""
        if self.tls is None:
            return
        for file in ("server-cert", "server-key", *(["root-cert"] if self.use_ssl_mutual else [])):
            if not getattr(self, file.replace("-", "_")):
                option = f"--{subject}-use-ssl" + ("-mutual" if self.use_ssl_mutual else "")
                files = " or ".join(dict.fromkeys((f"'--{subject}-{file}'", f"'--grpc-{file}'")))
                raise ValueError(f"option '{option}' needs {files}")

    @property
    def tls(self) -> TlsFiles | None:
        """None: plain connections."""
        if not self.use_ssl and not self.use_ssl_mutual:
            return None
        root = Path(self.root_cert) if self.root_cert and self.use_ssl_mutual else None
        return TlsFiles(Path(self.server_cert), Path(self.server_key), root, self.use_ssl_mutual)


@validated_dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class HttpSettings(FrontEndSettings):
    """How HTTP is served; times are in seconds. TLS files that are not set are those of gRPC."""

    port: Port = option(8000, _PORT_HELP)
    restrictions: values.HttpRestrictions = option(
        {},
        "Calls at the HTTP and admin ports that need a header; may be repeated.",
        "http-restricted-api",
        value="API,…:HEADER=VALUE",
        parse=partial(values.restriction, "api"),
        several=True,
    )
    max_json: Annotated[int, Field(ge=1)] = option(
        64 * 1024 * 1024,
        "Maximum size of a request's JSON in bytes; --request-memory-limit limits binary tensors.",
        "http-max-input-size",
    )
    max_connections: Count = option(
        10_000,
        "Maximum number of open connections, within the limit on open files; one more gets 503; 0: as many as that "
        "limit allows.",
    )
    idle_timeout: Count = option(620, "Seconds that an idle connection stays open; 0: forever.")
    console: bool = option(True, "Serve the live console to browsers, at / and /console.", "console")
    peers: str = option(
        "",
        "Servers that the console shows: addresses with commas between them, or dns:///NAME:PORT for all of a name.",
        "peers",
        value="URL,…",
    )
    allow_host: values.Hosts = option(
        frozenset(),
        "Name by which browsers may call the server, besides addresses and the machine's names; * for any; may be "
        "repeated.",
        value="NAME",
        several=True,
    )
    cors_allow_origin: values.Origins = option(
        frozenset(),
        "Origin whose pages may call the server from a browser, * for any; may be repeated.",
        value="ORIGIN",
        several=True,
    )
    platform: Platform = option(
        "none",
        "Also serve the calls of a platform's containers, with its environment variables as defaults: those of Amazon "
        "SageMaker, or of Google's Vertex AI.",
        "platform",
    )
    vertex_ai_default_model: str = option(
        "",
        "Model that takes Vertex AI's predictions, with --platform=vertex; by default the only one there is.",
        "vertex-ai-default-model",
        value="NAME",
    )
    routes: PlatformRoutes | None = None
    """Those of the platform. No option sets them."""
    for_operators: bool = False
    """The port is for operators: no origin is allowed. No option sets it."""


@validated_dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class GrpcSettings(FrontEndSettings):
    """How gRPC is served; times are in milliseconds. The defaults are those of gRPC and Triton."""

    port: Port = option(8001, _PORT_HELP)
    restrictions: values.GrpcRestrictions = option(
        {},
        "gRPC calls that need the header triton-grpc-protocol-HEADER; may be repeated.",
        "grpc-restricted-protocol",
        value="PROTOCOL,…:HEADER=VALUE",
        parse=partial(values.restriction, "protocol"),
        several=True,
    )
    compression: values.Compression = option(
        "none",
        "Compress responses for clients that accept it: low with gzip, medium and high with deflate.",
        "grpc-infer-response-compression-level",
    )
    max_message: Annotated[int | None, Field(ge=0, le=2**31 - 1)] = option(
        None,
        "Maximum bytes of a client's message; 0: no limit. The memory is that of container, process limit or machine, "
        "whichever is smallest.",
        "grpc-max-message-size",
        default_in_words="an eighth of the memory, at most 512 MiB",
    )
    max_concurrent_streams: Count = option(
        1_000, "Maximum number of open calls on a connection; others wait in the client; 0: no limit."
    )
    keepalive_time: Milliseconds = option(7_200_000, "Milliseconds of silence before the server pings a client.")
    keepalive_timeout: Milliseconds = option(
        20_000, "Milliseconds to reply to a ping before the client is disconnected."
    )
    keepalive_permit_without_calls: bool = option(False, "Also send pings on connections without calls.")
    http2_max_pings_without_data: Count = option(2, "Pings sent without data in between; 0: no limit.")
    http2_min_recv_ping_interval_without_data: Count = option(
        300_000, "Minimum milliseconds between pings of a client that sends no data; an earlier ping is a strike."
    )
    http2_max_ping_strikes: Count = option(2, "Strikes before a client's connection is closed; 0: no limit.")
    max_connection_age: Count = option(0, "Milliseconds before the server asks a client to reconnect; 0: never.")
    max_connection_age_grace: Count = option(0, "Milliseconds that its calls may still take then; 0: no limit.")
