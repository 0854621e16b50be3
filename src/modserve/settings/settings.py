"""The settings of a server, each with field, type, limits, default and help; options need nothing else.

For HTTP and gRPC, see `front_ends`.
"""

import dataclasses
import operator
import os
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from modserve.core.configuration.cache_settings import CacheSettings
from modserve.core.configuration.log_settings import AccessMode, AccessSettings, LogFormat, LogSettings
from modserve.core.configuration.trace_settings import OPENTELEMETRY, TraceLevel, TraceSettings
from modserve.core.files.remote_place import RemotePlace
from modserve.core.requests.origin import Proxies, network_of
from modserve.core.secret_names import HEADERS

from . import cache_options, front_ends, limits, log, setting_types, telemetry
from .examples import example_models
from .front_ends import GrpcSettings, HttpSettings
from .options import Option, did_you_mean, option, options_of
from .record import RECORD, Record
from .setting_types import Count, Port, UnsignedCount


class Settings(BaseModel):
    """Settings of a server: ``Settings(model_repository="models", http_port=0)``.

    Keywords are the options' names with underscores; options of HTTP and gRPC become fields of `http` and `grpc`.
    Raises pydantic's ValidationError.
    """

    # Inputs may contain a password.
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), hide_input_in_errors=True)

    model_repository: setting_types.Places = option(
        (),
        "Directory of models, or s3://, gs://, as://, hf:// or an archive at http(s)://; repeatable.",
        "",
        Option("Same as --model-repository.", "model-store", value="DIR", several=True),
        section="server and models",
        value="DIR",
        several=True,
    )
    """Model repositories, one or several; `repositories` has them as paths and remote places."""
    python_model: setting_types.PythonModels = option(
        {},
        "Decorated function or class, as in 'serve my_module:my_model'. Default NAME: OBJECT. Repeatable.",
        value="[NAME=]MODULE:OBJECT",
        several=True,
    )
    """Decorated objects or their import paths, by name; the keyword accepts one or several, or a mapping."""
    model_file: setting_types.ModelFiles = option(
        (),
        "Model file or directory of one model, as in 'serve resnet50.onnx'. Default NAME: the file name. Repeatable.",
        value="[NAME=]FILE",
        several=True,
    )
    """The keyword accepts one or several paths, or a mapping by name; the field has names (may be empty) and paths."""
    example: bool = option(False, "Serve the example models that come with modserve.", flag=True)
    id: str = option("modserve", "The server's name in its metadata.", value="NAME")
    exit_on_error: bool = option(False, "Exit if a model fails to load at the start.")
    exit_timeout_secs: Count = limits.EXIT_SECS
    shutdown_delay_secs: Count = limits.DELAY_SECS
    strict_readiness: bool = option(True, "Be ready only when every model is; false: when the loads at the start end.")
    strict_version_readiness: bool = option(
        False,
        "Be unready while any version loads or has failed, as in Triton; false: not if another version serves.",
    )
    model_control_mode: setting_types.ControlMode = option(
        "none",
        "none: load all models at the start; explicit: by --load-model and load calls; poll: follow the repositories' "
        "changes.",
    )
    load_model: tuple[str, ...] = option(
        (), "Model to load at the start in mode explicit, * for all; repeatable.", value="NAME"
    )
    allow_outside_symlinks: bool = option(
        False, "Load models whose symbolic links lead out of their repository.", flag=True
    )
    require_digests: bool = option(
        False, "Refuse models with files that the repository's SHA256SUMS does not list.", flag=True
    )
    deny_code: bool = option(
        False,
        "Refuse models that run code from the repository: Python, pickles, operator libraries.",
        flag=True,
    )
    repository_poll_secs: Count = option(15, "Seconds between two polls in mode poll; 0: never.")
    repository_cache_dir: str = option(
        "",
        "Directory for the files of remote repositories.",
        value="DIR",
        default_in_words="modserve/models in the user's cache folder",
    )
    repository_timeout_secs: Annotated[int, Field(ge=1, le=3600)] = option(
        10, "Seconds without data until a remote repository counts as unresponsive."
    )
    model_config_name: setting_types.ConfigName = option(
        "",
        "Use a model's configs/NAME.pbtxt, if it exists, instead of config.pbtxt.",
        value="NAME",
    )
    model_load_retry_count: Count = option(0, "Retries of a failed load.")
    model_load_thread_count: Annotated[int, Field(ge=1)] = option(4, "Model versions that load at the same time.")
    warmup: Literal["auto", "config", "off"] = option(
        "config",
        "Sample requests before a model is ready: config: those in model_warmup; auto: also generated ones; off: none.",
    )
    # As in tritonserver, the option that switches it off wins over the one that switches it on.
    disable_auto_complete_config: setting_types.AnyFlag = option(
        False,
        "Do not complete config.pbtxt from the model file.",
        "",
        Option("Same as --disable-auto-complete-config.", "strict-model-config", several=True),
        several=True,
        flag=True,
    )
    default_backend: Literal["file", "auto"] = option(
        "file",
        "Backend if the configuration names none: file: by the model's file; auto: the fastest, by measurement.",
    )
    backend_config: setting_types.BackendOptions = option(
        {},
        "Option of a backend, or without BACKEND a default for all; repeatable.",
        value="[BACKEND,]KEY=VALUE",
        parse=setting_types.backend_option,
        several=True,
    )
    """Options by backend name; the name ``""`` has defaults for all backends."""
    cache_config: setting_types.CacheConfig = cache_options.CACHE_CONFIG
    """Raw options; a number is a size in bytes. For the parsed value, see `cache`."""
    rate_limit: setting_types.RateLimit = limits.RATE_LIMIT
    rate_limit_resource: setting_types.RateLimitResources = option(
        {},
        "Amount of a resource on DEVICE, by default on each. Without it: the largest need of an instance. Repeatable.",
        value="NAME:COUNT[:DEVICE]",
        parse=setting_types.rate_limit_resource,
        several=True,
    )
    """Resources by name and device; None for each device."""
    supervise: bool = option(False, "Run the server as a child process, and restart it after a crash.", flag=True)
    """No effect for an embedded server."""
    workers: Annotated[int, Field(ge=1, le=256)] = option(
        1, "Processes that share the ports, each with its own instances and queues."
    )
    """No effect for an embedded server."""
    request_memory_limit: Annotated[int | None, Field(ge=0)] = limits.REQUEST_MEMORY
    """None for half of the memory of the container or machine."""
    max_accepted_requests: Count = limits.MAX_ACCEPTED
    execution_timeout_secs: Count = limits.EXECUTION_SECS
    allow_client_shm: bool = option(False, "Let clients register shared memory and pass tensors in it.")
    model_memory_limit: limits.Limit = limits.LIMIT
    load_lazily: limits.Lazily = limits.LAZILY
    model_idle_unload_secs: Count = limits.IDLE_SECS
    model_memory_wait_secs: Count = limits.WAIT_SECS

    auth_file: str = front_ends.FILE
    auth_open: front_ends.Open = front_ends.OPEN
    api_key: front_ends.Key = None
    admin_address: front_ends.AdminAddress = front_ends.ADMIN
    http: HttpSettings = HttpSettings()
    grpc: GrpcSettings = GrpcSettings()

    allow_metrics: bool = option(True, "Serve Prometheus metrics.", section="metrics and timing")
    metrics_address: front_ends.Address = front_ends.METRICS
    metrics_port: Port = option(8002, "Port for metrics; 0: a free one.")
    metrics_config: setting_types.MetricsConfig = option(
        {},
        "counter_latencies, histogram_latencies (default true), summary_latencies (default false), or "
        "summary_quantiles; repeatable.",
        value="SETTING=VALUE",
        parse=setting_types.metrics_setting,
        several=True,
    )
    metrics_interval_ms: setting_types.Milliseconds = option(
        2000, "Milliseconds that figures of CPU, memory and GPUs are reused."
    )
    allow_cpu_metrics: bool = option(True, "Include the machine's CPU and memory in the metrics.")
    allow_gpu_metrics: bool = option(True, "Include GPUs in the metrics, if nvidia-ml-py is installed.")
    event_loop_warning_ms: Annotated[int, Field(ge=0, le=60_000)] = option(
        250, "Log code that blocks the event loop for this many milliseconds; 0: never."
    )

    log_verbose: UnsignedCount = option(
        0, "Log debugging messages if above 0.", section="log", parse=setting_types.verbosity
    )
    log_info: bool = option(True, "Log informational messages.")
    log_warning: bool = option(True, "Log warnings.")
    log_error: bool = option(True, "Log errors.")
    log_format: Literal["default", "ISO8601", "json"] = log.FORMAT
    log_file: str = log.FILE
    log_multiline: Literal["auto", "true", "false"] = log.MULTILINE
    access_log: Literal["off", "errors", "sampled", "all"] = log.ACCESS_LOG
    access_log_rate: Annotated[int, Field(ge=1)] = log.ACCESS_LOG_RATE
    trusted_proxy: tuple[log.Proxy, ...] = log.PROXIES
    audit_log: str = log.AUDIT_LOG
    record: Record = RECORD
    request_ids: Literal["needed", "all"] = log.REQUEST_IDS

    trace_level: frozenset[Literal["OFF", "TIMESTAMPS", "TENSORS"]] = option(
        frozenset(),
        "Contents of traces; OFF disables tracing; repeatable.",
        "",
        Option(
            "Sets and overrides the other trace options: level, rate, count, mode, triton,file, triton,log-frequency, "
            "or opentelemetry,SETTING; repeatable.",
            "trace-config",
            value="SETTING=VALUE",
            expand=setting_types.trace_setting,
        ),
        section="traces",
        value="OFF|TIMESTAMPS|TENSORS",
        parse=setting_types.level_name,
        several=True,
    )
    trace_rate: UnsignedCount = option(1000, "Trace one of this many requests.")
    trace_count: Annotated[int, Field(ge=-1, le=2**31 - 1)] = option(-1, "Requests to trace; -1: no limit.")
    trace_log_frequency: UnsignedCount = option(0, "Traces per file; file names end in an index. 0: one file.")
    trace_file: str = option("", "File for traces; without it, nothing is traced in mode triton.")
    trace_mode: setting_types.TraceMode = option(
        "triton",
        "triton: write a file in Triton's format; opentelemetry: send spans to a collector (OTLP).",
        parse=setting_types.trace_mode,
    )
    trace_opentelemetry: setting_types.SpanConfig = option(
        (),
        "Setting of the collector: url, protocol (http/protobuf or grpc), resource (KEY=VALUE), bsp_max_queue_size, "
        "bsp_schedule_delay (ms) or bsp_max_export_batch_size; repeatable.",
        value="SETTING=VALUE",
        several=True,
    )
    """Pairs of names and values; the keyword also accepts a mapping."""

    def __init__(self, *, model_repository: setting_types.Repositories = (), **options: Any) -> None:
        super().__init__(model_repository=model_repository, **options)

    @property
    def repositories(self) -> tuple[Path | RemotePlace, ...]:
        """Places of models, without duplicates."""
        places = cast(tuple[Path | RemotePlace, ...], self.model_repository)
        return (*places, example_models()) if self.example else places

    @property
    def remarks(self) -> tuple[str, ...]:
        """Settings without effect, with the reason."""
        remarks = []
        if self.summary_quantiles and self.metrics_config.get("summary_latencies") != "true":
            remarks.append("--metrics-config summary_quantiles has no effect without summary_latencies=true")
        if self.rate_limit == "off" and self.rate_limit_resource:
            remarks.append("--rate-limit-resource has no effect without --rate-limit=execution_count")
        if self.trace_mode == OPENTELEMETRY:
            if self.trace_file or self.trace_log_frequency:
                remarks.append("--trace-file and --trace-log-frequency have no effect in trace mode opentelemetry")
            if "TENSORS" in self.trace_level:
                remarks.append("--trace-level=TENSORS has no effect in trace mode opentelemetry: spans have no tensors")
        elif self.trace_opentelemetry:
            remarks.append("--trace-config opentelemetry,… has no effect without --trace-config mode=opentelemetry")
        return tuple(remarks)

    @property
    def summary_quantiles(self) -> tuple[str, ...]:
        """Quantiles of the summaries on the metrics page; none if not set."""
        return setting_types.quantiles(self.metrics_config.get("summary_quantiles", ""))

    @property
    def cache(self) -> CacheSettings:
        """Settings of the response cache."""
        return cast(CacheSettings, self.cache_config)

    @property
    def log(self) -> LogSettings:
        """Initial settings of the log: levels, format and file."""
        levels = self.log_info, self.log_warning, self.log_error, self.log_verbose
        return LogSettings(*levels, LogFormat(self.log_format), self.log_file, self.log_multiline)

    @property
    def access(self) -> AccessSettings:
        """Settings of the access log and of request ids."""
        return AccessSettings(AccessMode(self.access_log), self.access_log_rate, self.request_ids == "all")

    @property
    def proxies(self) -> Proxies:
        """Proxies trusted to report clients' addresses."""
        return Proxies([network_of(each) for each in self.trusted_proxy])

    @property
    def trace(self) -> TraceSettings:
        """Initial settings of tracing."""
        levels = [TraceLevel[name] for name in self.trace_level]
        level = TraceLevel.OFF if TraceLevel.OFF in levels else reduce(operator.or_, levels, TraceLevel.OFF)
        spans = None
        if self.trace_mode == OPENTELEMETRY:
            spans = telemetry.span_settings(self.trace_opentelemetry, os.environ)
        return TraceSettings(level, self.trace_rate, self.trace_count, self.trace_log_frequency, self.trace_file, spans)

    @model_validator(mode="before")
    @classmethod
    def _by_subject(cls, keywords: Any) -> Any:
        """Move keywords such as ``http_port`` into `http`, and use gRPC's certificates if HTTP has none."""
        if not isinstance(keywords, Mapping):
            return keywords
        fields: dict[str, Any] = {}
        subjects: dict[str, dict[str, Any]] = {}
        for name in ("http", "grpc"):
            value = keywords.get(name, {})
            if dataclasses.is_dataclass(value):
                value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            if not isinstance(value, Mapping):
                raise ValueError(f"expected settings of {name}, got: {value}")
            subjects[name] = dict(value)
        for keyword, value in keywords.items():
            if keyword in subjects:
                continue
            if keyword not in _PATHS:
                raise ValueError(f"there is no setting '{keyword}'" + did_you_mean(keyword, _PATHS))
            for *subject, field in _PATHS[keyword]:
                (subjects[subject[0]] if subject else fields)[field] = value
        for file in ("server_cert", "server_key", "root_cert"):
            subjects["http"][file] = subjects["http"].get(file) or subjects["grpc"].get(file, "")
        front_ends.complete(fields, subjects["http"], subjects["grpc"], os.environ)
        return {**fields, **subjects}

    @model_validator(mode="after")
    def _check_models(self) -> Self:
        if self.example:
            example_models()
        elif not (self.model_repository or self.python_model or self.model_file):
            raise ValueError("no model repository given; set '--model-repository DIR'")
        for refused, text in ((self.deny_code, "deny-code"), (self.require_digests, "require-digests")):
            if refused and self.python_model:
                raise ValueError(f"option '--{text}' refuses all Python models, but '--python-model' names some")
        return self

    @model_validator(mode="after")
    def _check_traces(self) -> Self:
        if self.trace_mode == OPENTELEMETRY:
            telemetry.check_library()
            telemetry.span_settings(self.trace_opentelemetry, os.environ)
        return self

    @model_validator(mode="after")
    def _check_control(self) -> Self:
        """Check Triton's rules, with its texts."""
        if self.load_model and self.model_control_mode != "explicit":
            raise ValueError("Use of '--load-model' requires setting '--model-control-mode=explicit' as well.")
        if "*" in self.load_model and len(self.load_model) > 1:
            raise ValueError("Wildcard model name '*' must be the ONLY startup model if specified at all.")
        return self

    @model_validator(mode="after")
    def _check_rate_limit(self) -> Self:
        if self.rate_limit != "off" and self.workers > 1:
            raise ValueError("'--rate-limit=execution_count' needs '--workers=1', since workers do not share resources")
        return self

    @model_validator(mode="after")
    def _check_front_ends(self) -> Self:
        """Check that TLS has its files, and mutual TLS the clients' roots; keep headers with keys from models."""
        keys = HEADERS if self.auth_file or self.api_key else ()
        self.__dict__.update(http=self.http.without_secrets(keys), grpc=self.grpc.without_secrets(keys))
        self.http.check_certificates("http")
        self.grpc.check_certificates("grpc")
        return self


def _options() -> dict[str, Option]:
    options: dict[str, Option] = {}
    for name, field in Settings.model_fields.items():
        label = {"http": "HTTP", "grpc": "gRPC"}.get(name, "")
        fields = cast(Any, field.annotation).__pydantic_fields__ if label else {name: field}
        for each in options_of(fields, name if label else "", label):
            # --server-timing sets a field of both.
            twin = options.get(each.name)
            options[each.name] = dataclasses.replace(twin, paths=twin.paths + each.paths) if twin else each
    return options


OPTIONS: Mapping[str, Option] = _options()
"""Options with an effect, by name, in the order of the help."""
_PATHS = {option.keyword: option.paths for option in OPTIONS.values()} | {"api_key": (("api_key",),)}
