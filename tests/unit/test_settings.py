"""The command line and the environment, read into settings."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from modserve import Settings
from modserve.access import credentials
from modserve.core.configuration.cache_settings import PASSWORD_VARIABLE, CacheSettings
from modserve.core.files.remote_place import RemotePlace
from modserve.core.secret_names import HEADERS, KEY_VARIABLE, VARIABLES
from modserve.protocol.restricted import grpc_restrictions, http_restrictions
from modserve.settings import (
    OPTIONS,
    CommandLine,
    GrpcSettings,
    HttpSettings,
    OptionError,
    TlsFiles,
    from_command_line,
    header_pattern,
)
from modserve.settings import examples as examples_module
from modserve.settings.sources import WITHOUT_EFFECT

TRITONSERVER_OPTIONS = re.findall(
    r"\S+",
    """
    id model-store model-repository model-control-mode load-model model-config-name http-address
    http-header-forward-pattern grpc-address grpc-header-forward-pattern grpc-server-cert grpc-server-key grpc-root-cert
    grpc-infer-response-compression-level log-format log-file vertex-ai-default-model metrics-address cache-directory
    rate-limit backend-directory repoagent-directory trace-file trace-level
    exit-timeout-secs repository-poll-secs model-load-thread-count model-load-retry-count http-port http-thread-count
    http-max-input-size grpc-port grpc-infer-thread-count grpc-infer-allocation-pool-size grpc-max-response-pool-size
    grpc-keepalive-time grpc-keepalive-timeout grpc-http2-max-pings-without-data
    grpc-http2-min-recv-ping-interval-without-data grpc-http2-max-ping-strikes grpc-max-connection-age
    grpc-max-connection-age-grace log-verbose sagemaker-port sagemaker-thread-count vertex-ai-port
    vertex-ai-thread-count metrics-port pinned-memory-pool-byte-size buffer-manager-thread-count
    response-cache-byte-size trace-rate trace-count trace-log-frequency
    metrics-interval-ms min-supported-compute-capability
    exit-on-error strict-readiness model-namespacing enable-peer-access allow-http reuse-http-port allow-grpc
    reuse-grpc-port grpc-use-ssl grpc-use-ssl-mutual grpc-keepalive-permit-without-calls log-info log-warning log-error
    allow-sagemaker allow-vertex-ai allow-metrics allow-gpu-metrics allow-cpu-metrics allow-client-shm
    strict-model-config
    disable-auto-complete-config
    http-restricted-api grpc-restricted-protocol metrics-config trace-config cache-config backend-config host-policy
    rate-limit-resource cuda-memory-pool-byte-size cuda-virtual-address-size model-load-gpu-limit
    sagemaker-safe-port-range
""",
)
"""Its long options, but for --help, which is the command's."""
OWN_OPTIONS = [
    "access-log",
    "admin-address",
    "audit-log",
    "auth-file",
    "record",
    "auth-open",
    "access-log-rate",
    "log-multiline",
    "request-ids",
    "allow-outside-symlinks",
    "console",
    "peers",
    "platform",
    "default-backend",
    "deny-code",
    "event-loop-warning-ms",
    "execution-timeout-secs",
    "max-accepted-requests",
    "example",
    "grpc-max-concurrent-streams",
    "grpc-max-message-size",
    "http-allow-host",
    "http-client-timeout",
    "http-cors-allow-origin",
    "http-idle-timeout",
    "http-max-connections",
    "http-root-cert",
    "http-server-cert",
    "http-server-key",
    "http-use-ssl",
    "http-use-ssl-mutual",
    "load-lazily",
    "model-file",
    "model-idle-unload-secs",
    "model-memory-limit",
    "model-memory-wait-secs",
    "python-model",
    "request-memory-limit",
    "server-timing",
    "repository-cache-dir",
    "repository-timeout-secs",
    "orca",
    "shutdown-delay-secs",
    "strict-version-readiness",
    "supervise",
    "trace-mode",
    "trace-opentelemetry",
    "trusted-proxy",
    "warmup",
    "workers",
    "require-digests",
]
"""Those that tritonserver does not have."""
CERTIFICATES = ["--grpc-server-cert=cert.pem", "--grpc-server-key=key.pem", "--grpc-root-cert=root.pem"]
BOOLEANS = [name for name, option in OPTIONS.items() if option.value == "true|false"]


def read(*arguments: str, **environment: str) -> CommandLine:
    return from_command_line(["--model-repository=models", *arguments], environment)


def error(*arguments: str, **environment: str) -> str:
    with pytest.raises(OptionError) as caught:
        read(*arguments, **environment)
    return str(caught.value)


def value_of(settings: Settings, keyword: str) -> object:
    """The value of a setting by its keyword: ``http_port`` is `settings.http.port`."""
    (*subject, field), *_ = OPTIONS[keyword.replace("_", "-")].paths
    return getattr(getattr(settings, subject[0]) if subject else settings, field)


# The table


def test_the_example_models_are_a_repository_more() -> None:
    examples = Path(__file__).parents[2] / "model_repository"
    assert Settings(example=True).repositories == (examples,)
    assert from_command_line(["--example"], {}).settings.repositories == (examples,)
    assert Settings(model_repository="models", example=True).repositories == (Path("models"), examples)


def test_an_installation_without_example_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples_module, "_PACKAGE", tmp_path / "a" / "b" / "modserve")
    with pytest.raises(OptionError, match=r"the example models are not in .*: install modserve from its wheel"):
        from_command_line(["--example"], {})
    packaged = tmp_path / "a" / "b" / "modserve" / "example_models"
    (packaged / "simple").mkdir(parents=True)
    (packaged / "simple" / "config.pbtxt").touch()
    assert Settings(example=True).repositories == (packaged,)


def test_every_option_of_tritonserver_is_known_in_one_way() -> None:
    known = [*OPTIONS, *WITHOUT_EFFECT]
    assert sorted(known) == sorted([*TRITONSERVER_OPTIONS, *OWN_OPTIONS])


def test_every_setting_has_an_option() -> None:
    paths = {path for option in OPTIONS.values() for path in option.paths}
    fields: set[tuple[str, ...]] = {
        (name,) for name in Settings.model_fields if name not in ("http", "grpc", "api_key")
    }
    for subject, settings in (("http", HttpSettings), ("grpc", GrpcSettings)):
        fields |= {(subject, field.name) for field in dataclasses.fields(settings)}
    fields -= {(subject, "limits") for subject in ("http", "grpc")} | {("http", "for_operators"), ("http", "routes")}
    assert paths == fields


def test_an_option_without_effect_is_taken_with_its_value() -> None:
    for name, reason in WITHOUT_EFFECT.items():
        line = read(f"--{name}", "1", "--id", "x", f"--{name}=1")
        assert line.warnings == (f"option '--{name}' has no effect in modserve: {reason}",)
        assert line.settings.id == "x"


def test_a_deprecated_option_works_with_a_warning() -> None:
    line = read("--response-cache-byte-size=7")
    assert line.settings.cache_config == CacheSettings(7)
    assert line.warnings == ("option '--response-cache-byte-size' is deprecated: use --cache-config=local,size=N",)


def test_switching_off_what_is_not_there_is_fine() -> None:
    line = read(
        "--allow-sagemaker=false",
        "--allow-vertex-ai",
        "0",
        "--model-namespacing=off",
        "--rate-limit=OFF",
        "--id=x",
        "--allow-gpu-metrics=false",
        "--allow-cpu-metrics=0",
        "--enable-peer-access=false",
    )
    assert (line.warnings, line.settings.id) == ((), "x")
    assert (
        error("--allow-sagemaker=maybe")
        == "option '--allow-sagemaker': invalid value for bool option: maybe (expected true or false)"
    )


# Spellings


def test_defaults_are_tritonserver_s_ports_on_all_addresses() -> None:
    settings = read().settings
    assert (settings.http.port, settings.grpc.port, settings.metrics_port) == (8000, 8001, 8002)
    assert (settings.http.address, settings.grpc.address, settings.metrics_address) == ("0.0.0.0", "0.0.0.0", "")
    assert (settings.http.max_json, settings.exit_timeout_secs) == (67108864, 30)
    assert settings.model_repository == (Path("models"),)
    assert settings == Settings(model_repository=("models",))


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        (["--http-port", "81"], "http_port", 81),
        (["--http-port=81"], "http_port", 81),
        (["--http_port=81"], "http_port", 81),
        (["--http-p=81"], "http_port", 81),
        (["--http-p", "81"], "http_port", 81),
        (["--http-port=80", "--http-port=81"], "http_port", 81),
        (["--http-port=0"], "http_port", 0),
        (["--grpc-port=81"], "grpc_port", 81),
        (["--metrics-port=81"], "metrics_port", 81),
        (["--http-address=::1"], "http_address", "::1"),
        (["--grpc-address", ""], "grpc_address", ""),
        (["--metrics-address=a=b"], "metrics_address", "a=b"),
        (["--id", "--odd"], "id", "--odd"),
        (["--http-max-input-size=5"], "http_max_input_size", 5),
        (["--exit-timeout-secs=0"], "exit_timeout_secs", 0),
        (["--model-load-thread-count=2"], "model_load_thread_count", 2),
        (["--model-control-mode=none"], "model_control_mode", "none"),
        (["--model-control-mode=poll"], "model_control_mode", "poll"),
        (["--model-control-mode=EXPLICIT"], "model_control_mode", "explicit"),
        (["--model-control-mode=explicit", "--load-model=a", "--load-model", "b"], "load_model", ("a", "b")),
        (["--model-control-mode=explicit", "--load-model=*"], "load_model", ("*",)),
        (["--repository-poll-secs=0"], "repository_poll_secs", 0),
        (["--model-load-retry-count=3"], "model_load_retry_count", 3),
        (["--cache-config=local,size=1048576"], "cache_config", CacheSettings(1048576)),
        (["--cache-config=local,size=1", "--cache-config=local,size=2"], "cache_config", CacheSettings(2)),
        (["--response-cache-byte-size=7"], "cache_config", CacheSettings(7)),
        (["--disable-auto-complete-config"], "disable_auto_complete_config", True),
        (["--disable-auto-complete-config=false"], "disable_auto_complete_config", False),
        (["--disable-auto"], "disable_auto_complete_config", True),
        (["--strict-r=off"], "strict_readiness", False),
        (["--exit-on-error", "true"], "exit_on_error", True),
        (["--log-format=default"], "log_format", "default"),
        (["--log-format=ISO8601"], "log_format", "ISO8601"),
        (["--grpc-server-cert=a.pem"], "grpc_server_cert", "a.pem"),
        (["--http-root-cert=a.pem"], "http_root_cert", "a.pem"),
        (["--grpc-infer-response-compression-level=high"], "grpc_infer_response_compression_level", "high"),
        (["--grpc-infer-response-compression-level=Low"], "grpc_infer_response_compression_level", "low"),
        (["--grpc-keepalive-time=1000"], "grpc_keepalive_time", 1000),
        (["--grpc-http2-max-ping-strikes=0"], "grpc_http2_max_ping_strikes", 0),
        (["--grpc-max-connection-age=5"], "grpc_max_connection_age", 5),
        (["--http-restricted-api=health:k=v"], "http_restricted_api", http_restrictions({"health": ("k", "v")})),
        (
            ["--http-restricted-api=health,metadata:k=v=w:x", "--http-restricted-api=trace:l=u"],
            "http_restricted_api",
            http_restrictions({"health": ("k", "v=w:x"), "metadata": ("k", "v=w:x"), "trace": ("l", "u")}),
        ),
        (
            ["--grpc-restricted-protocol=model-repository:k=v"],
            "grpc_restricted_protocol",
            grpc_restrictions({"model-repository": ("k", "v")}),
        ),
        (["--http-header-forward-pattern=(?-i)x-"], "http_header_forward_pattern", re.compile("x-")),
        (["--grpc-header-forward-pattern", "^x-.*"], "grpc_header_forward_pattern", re.compile("^x-.*", re.IGNORECASE)),
        (["--http-cors-allow-origin=*"], "http_cors_allow_origin", frozenset("*")),
        (
            ["--http-cors-allow-origin=https://Page.example:8443", "--http-cors-allow-origin", "null"],
            "http_cors_allow_origin",
            frozenset({"https://page.example:8443", "null"}),
        ),
        (
            ["--http-allow-host=Models.Example.", "--http-allow-host", "[::1]"],
            "http_allow_host",
            frozenset({"models.example", "[::1]"}),
        ),
        (["--trace-config=triton,file=a,b=c.json"], "trace_file", "a,b=c.json"),
        (["--trace-config=TRITON,log-frequency=5"], "trace_log_frequency", 5),
        (["--trace-config", "rate=1"], "trace_rate", 1),
        (["--trace-config=count=-1", "--trace-config=count=5"], "trace_count", 5),
        (["--trace-config=mode=Triton"], "trace_level", frozenset()),
        (
            ["--trace-config=level=timestamps", "--trace-level=TENSORS"],
            "trace_level",
            frozenset({"TIMESTAMPS", "TENSORS"}),
        ),
        (
            ["--trace-level=min", "--trace-level=max", "--trace-level=OFF"],
            "trace_level",
            frozenset({"TIMESTAMPS", "OFF"}),
        ),
        (["--trace-config=rate=1", "--trace-rate=2"], "trace_rate", 1),
        (["--trace-config=triton,file=a", "--trace-file=b"], "trace_file", "a"),
        (["--trace-file=b"], "trace_file", "b"),
        (["--trace-count=7"], "trace_count", 7),
        (["--trace-log-frequency=7"], "trace_log_frequency", 7),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_spelling(arguments: list[str], field: str, value: object) -> None:
    assert value_of(read(*arguments).settings, field) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("True", True), ("ON", True), ("1", True), ("false", False), ("oFF", False), ("0", False)],
)
def test_a_boolean(text: str, value: bool) -> None:
    for name in BOOLEANS:
        assert value_of(read(f"--{name}={text}", *CERTIFICATES).settings, name) is value


@pytest.mark.parametrize(
    ("text", "level"), [("0", 0), ("1", 1), ("3", 3), ("true", 1), ("false", 0), ("on", 1), ("Off", 0)]
)
def test_verbosity_is_a_level_or_a_boolean(text: str, level: int) -> None:
    assert read(f"--log-verbose={text}").settings.log_verbose == level


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model-repository=a", "--model-repository", "b", "--model-repository=a"],
        ["--model-store=a", "--model-repository=b"],
        ["--model-store", "a", "--model-s=b", "--model-store=b"],
    ],
    ids=["repeated", "both names", "the other name"],
)
def test_repositories_form_a_set(arguments: list[str]) -> None:
    assert from_command_line(arguments, {}).settings.model_repository == (Path("a"), Path("b"))


def test_options_of_backends() -> None:
    arguments = (
        "--backend-config=a,x=1",
        "--backend-config",
        "b,x=2,3=4",
        "--backend-config=x=6,7",
        "--backend-config=a,x=5",
    )
    assert read(*arguments).settings.backend_config == {"a": {"x": "5"}, "b": {"x": "2,3=4"}, "": {"x": "6,7"}}


@pytest.mark.parametrize(
    ("arguments", "disabled"),
    [
        ("", False),
        ("--strict-model-config=false", False),
        ("--strict-model-config=true", True),
        ("--strict-model-config 1", True),
        ("--disable-auto-complete-config", True),
        ("--disable-auto-complete-config --strict-model-config=false", True),
        ("--disable-auto-complete-config=false --strict-model-config=true", True),
    ],
)
def test_two_options_for_configurations_that_say_everything(arguments: str, disabled: bool) -> None:
    line = read(*arguments.split())
    assert (line.settings.disable_auto_complete_config, line.warnings) == (disabled, ())


# The environment


@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        ("MODSERVE_HTTP_PORT", "81", "http_port", 81),
        ("MODSERVE_ALLOW_GRPC", "off", "allow_grpc", False),
        ("MODSERVE_DISABLE_AUTO_COMPLETE_CONFIG", "true", "disable_auto_complete_config", True),
        ("MODSERVE_STRICT_MODEL_CONFIG", "true", "disable_auto_complete_config", True),
        ("MODSERVE_LOG_VERBOSE", "2", "log_verbose", 2),
        ("MODSERVE_TRACE_CONFIG", "level=TIMESTAMPS", "trace_level", frozenset({"TIMESTAMPS"})),
        ("MODSERVE_BACKEND_CONFIG", "a,x=1", "backend_config", {"a": {"x": "1"}}),
    ],
)
def test_an_option_from_the_environment(variable: str, text: str, field: str, value: object) -> None:
    assert value_of(read(**{variable: text}).settings, field) == value


def test_the_command_line_comes_first() -> None:
    settings = read(
        "--http-port=82", MODSERVE_HTTP_PORT="81", MODSERVE_GRPC_PORT="83", MODSERVE_MODEL_REPOSITORY="b"
    ).settings
    assert (settings.http.port, settings.grpc.port, settings.model_repository) == (82, 83, (Path("models"),))


def test_a_repository_from_the_environment_alone() -> None:
    assert from_command_line([], {"MODSERVE_MODEL_REPOSITORY": "b"}).settings.model_repository == (Path("b"),)


def test_the_process_s_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODSERVE_ID", "from outside")
    assert from_command_line(["--model-repository=models"]).settings.id == "from outside"


def test_other_variables_are_nobody_s_business() -> None:
    assert read(NOSUCH="1", HTTP_PORT="x", XMODSERVE_HTTP_PORT="x") == read()
    assert read(MODSERVE_COMPILED="0", MODSERVE_URL="http://h") == read()


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("MODSERVE_NOSUCH", ""),
        ("MODSERVE_", "; did you mean 'MODSERVE_ID'?"),
        ("MODSERVE_HTPP_PORT", "; did you mean 'MODSERVE_HTTP_PORT'?"),
        ("MODSERVE_MODEL_REPOSITORIES", "; did you mean 'MODSERVE_MODEL_REPOSITORY'?"),
        ("MODSERVE_http_port", ""),
    ],
)
def test_a_misspelled_variable_is_told(variable: str, hint: str) -> None:
    line = read(**{variable: "1"})
    assert line.warnings == (f"environment variable {variable} is ignored: there is no such option{hint}",)
    assert line.settings == read().settings


SERVICE = {
    "SERVICE_HOST": "10.0.0.7",
    "SERVICE_PORT": "8002",
    "SERVICE_PORT_HTTP_METRICS": "8002",
    "PORT": "tcp://10.0.0.7:8002",
    "PORT_8002_TCP": "tcp://10.0.0.7:8002",
    "PORT_8002_TCP_ADDR": "10.0.0.7",
    "PORT_8002_TCP_PORT": "8002",
    "PORT_8002_TCP_PROTO": "tcp",
    "PORT_53_UDP": "udp://[fd00::7]:53",
}
"""What Kubernetes tells of a service, behind its name."""


@pytest.mark.parametrize("service", ["", "WEB_", "MODEL_REPOSITORY_", "METRICS_", "HTTP_", "GRPC_"])
def test_what_kubernetes_tells_of_services_is_no_setting(service: str) -> None:
    """Only what would be a setting otherwise is mentioned."""
    line = read(**{f"MODSERVE_{service}{name}": text for name, text in SERVICE.items()})
    assert line.settings == read().settings
    clashes = service in ("METRICS_", "HTTP_", "GRPC_")
    assert len(line.warnings) == clashes
    if clashes:
        option = service.lower()
        assert line.warnings[0] == (
            f"environment variable MODSERVE_{service}PORT=tcp://10.0.0.7:8002 is ignored: it is what Kubernetes sets "
            f"for a service called modserve-{option[:-1]}; '--{option[:-1]}-port' or 'enableServiceLinks: false' in "
            "the pod avoids the clash"
        )


def test_a_link_to_something_else_than_a_service_is_a_mistake() -> None:
    assert "invalid value for integer option: tcp:8002" in error(MODSERVE_METRICS_PORT="tcp:8002")
    assert "invalid value for integer option: tcp://x" in error(MODSERVE_METRICS_PORT="tcp://x")


def test_variables_of_other_commands_are_none_of_the_servers() -> None:
    assert read(MODSERVE_URL="http://host:8000", MODSERVE_METRICS_URL="http://host:8002").warnings == ()


def test_a_variable_of_an_option_without_effect() -> None:
    (warning,) = read(MODSERVE_HTTP_THREAD_COUNT="8").warnings
    assert warning.startswith("environment variable MODSERVE_HTTP_THREAD_COUNT has no effect in modserve: ")
    assert error(MODSERVE_RATE_LIMIT="on").startswith("environment variable MODSERVE_RATE_LIMIT: Input should be ")
    assert read(MODSERVE_RATE_LIMIT="off", MODSERVE_ALLOW_SAGEMAKER="false").warnings == ()


# Option files


@pytest.fixture
def option_file(tmp_path: Path) -> Callable[..., str]:
    """Writes an option file, and returns its name."""

    def write(text: str, name: str = "modserve.yaml") -> str:
        (tmp_path / name).write_text(text, "utf-8")
        return str(tmp_path / name)

    return write


OptionFile = Callable[..., str]

YAML = """
# Comments and quotes are YAML's.
model-repository: [a, b]
http_port: 81
"allow-grpc": off
log-verbose: true
id: 007
backend-config:
  onnxruntime: {x: 1, y: "2,3=4"}
  z: 5
cache-config: {local: {size: 1048576}}
trace-config: {level: [TIMESTAMPS, TENSORS], rate: 5, triton: {file: t.json, log-frequency: 3}}
http-restricted-api: health,metadata:k=v
"""
TOML = """
model-repository = ["a", "b"]
http_port = 81
"allow-grpc" = false
log-verbose = true
id = "007"
http-restricted-api = "health,metadata:k=v"
[backend-config]
z = 5
onnxruntime = {x = 1, y = "2,3=4"}
[cache-config.local]
size = 1048576
[trace-config]
level = ["TIMESTAMPS", "TENSORS"]
rate = 5
triton = {file = "t.json", log-frequency = 3}
"""


@pytest.mark.parametrize(("name", "text"), [("a.yaml", YAML), ("a.yml", YAML), ("a.toml", TOML), ("a.TOML", TOML)])
def test_an_option_file(option_file: OptionFile, name: str, text: str) -> None:
    assert from_command_line(["--config", option_file(text, name)], {}) == CommandLine(
        Settings(
            model_repository=["a", "b"],
            http_port=81,
            allow_grpc=False,
            log_verbose=1,
            id="007",
            backend_config={"onnxruntime": {"x": "1", "y": "2,3=4"}, "": {"z": "5"}},
            cache_config=1048576,
            trace_level={"TIMESTAMPS", "TENSORS"},
            trace_rate=5,
            trace_file="t.json",
            trace_log_frequency=3,
            http_restricted_api={"health": ("k", "v"), "metadata": ("k", "v")},
        )
    )


def test_the_option_file_comes_last(option_file: OptionFile) -> None:
    file = option_file("http-port: 1\ngrpc-port: 1\nmetrics-port: 1\nmodel-repository: [a, b]")
    settings = from_command_line(
        ["--http-port=3", "--model-repository=c"],
        {"MODSERVE_CONFIG": file, "MODSERVE_HTTP_PORT": "2", "MODSERVE_GRPC_PORT": "2"},
    ).settings
    assert (settings.http.port, settings.grpc.port, settings.metrics_port) == (3, 2, 1)
    assert settings.repositories == (Path("c"),)


def test_the_command_line_names_the_option_file(option_file: OptionFile) -> None:
    first, second = option_file("id: first", "1.yaml"), option_file("id: second", "2.yaml")
    assert read(f"--config={second}", MODSERVE_CONFIG=first).settings.id == "second"


def test_an_empty_option_file(option_file: OptionFile) -> None:
    assert read("--config", option_file("# nothing")) == read()


def test_an_option_without_effect_in_a_file(option_file: OptionFile) -> None:
    file = option_file("http-thread-count: 8\nallow-sagemaker: false")
    (warning,) = read("--config", file).warnings
    assert warning.startswith(f"{file}:1: option 'http-thread-count' has no effect in modserve: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\nhtp-port: 1", ":2: unknown option 'htp-port'; did you mean 'http-port'?"),
        ("port: 1", ":1: unknown option 'port'; did you mean 'http-port'?"),
        ("xyzzy: 1", ":1: unknown option 'xyzzy'; 'modserve --help-all' lists all options"),
        ("config: x", ":1: an option file cannot name another one"),
        ("http: {port: 1}", ":1: unknown option 'http'; did you mean 'http-port'?"),
        ("id: x\nhttp-port: x", ":2: option 'http-port': invalid value for integer option: x"),
        ("http-port: 80000", ":1: option 'http-port': Input should be less than or equal to 65535, got: 80000"),
        ("http-port: [1, 2]", ":1: option 'http-port' takes one value"),
        ("http-port: []", ":1: option 'http-port' takes one value"),
        ("rate-limit: on", ":1: option 'rate-limit': Input should be 'off' or 'execution_count', got: on"),
        ("- http-port", ": expected options by name, such as 'http-port: 8000'"),
        ("a: [", ": not YAML: "),
    ],
)
def test_a_mistake_in_an_option_file(option_file: OptionFile, text: str, message: str) -> None:
    file = option_file(text)
    assert error("--config", file).startswith(file + message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\nhtp-port = 1", ":2: unknown option 'htp-port'; did you mean 'http-port'?"),
        ("id = 'x'\n'http-port' = 'x'", ":2: option 'http-port': invalid value for integer option: x"),
        ("[http]\nport = 1", ":1: unknown option 'http'; did you mean 'http-port'?"),
        ("http-port: 1", ": not TOML: "),
    ],
)
def test_a_mistake_in_toml(option_file: OptionFile, text: str, message: str) -> None:
    file = option_file(text, "modserve.toml")
    assert error("--config", file).startswith(file + message)


def test_an_option_file_that_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "nosuch.yaml"
    assert error(f"--config={file}") == f"cannot read the option file {file}: No such file or directory"
    file.write_bytes(b"id: \xff")
    assert error(f"--config={file}").startswith(f"cannot read the option file {file}: 'utf-8' codec can't decode")


# Decorated functions


class Decorated:
    __modserve_model__ = True

    def __init__(self, name: str = "") -> None:
        if name:
            self.__name__ = name


TWICE = Decorated("twice")


@pytest.mark.parametrize(
    ("words", "models"),
    [
        (["fns:double"], {"double": "fns:double"}),
        (["a.b:C.d", "--id=x", "other=dir/f.py:double"], {"d": "a.b:C.d", "other": "dir/f.py:double"}),
        (["--python-model", "fns:double", "--python-model=b=fns:c"], {"double": "fns:double", "b": "fns:c"}),
    ],
)
def test_models_on_the_command_line(words: list[str], models: dict[str, str]) -> None:
    settings = from_command_line(words, {}).settings
    assert (settings.python_model, settings.repositories) == (models, ())


def test_models_in_the_environment_and_in_a_file(tmp_path: Path) -> None:
    assert from_command_line([], {"MODSERVE_PYTHON_MODEL": "fns:double"}).settings.python_model == {
        "double": "fns:double"
    }
    (tmp_path / "options.yaml").write_text("python-model: ['a:b', 'c=a:d']")
    settings = from_command_line([f"--config={tmp_path / 'options.yaml'}"], {}).settings
    assert settings.python_model == {"b": "a:b", "c": "a:d"}


@pytest.mark.parametrize(
    ("value", "models"),
    [
        (TWICE, {"twice": TWICE}),
        ([TWICE, "fns:double"], {"twice": TWICE, "double": "fns:double"}),
        ({"a": TWICE, "b": TWICE, "c": "fns:double"}, {"a": TWICE, "b": TWICE, "c": "fns:double"}),
    ],
    ids=["one", "several", "by name"],
)
def test_models_as_objects(value: Any, models: dict[str, object]) -> None:
    assert Settings(python_model=value).python_model == models


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("double", "expected '[NAME=]MODULE:OBJECT', such as 'my_module:my_model', got: double"),
        ("a:3", "expected '[NAME=]MODULE:OBJECT'"),
        (3, "expected an object that modserve.model has decorated, or 'MODULE:OBJECT', got: 3"),
        (Decorated(), "a model cannot be called ''; expected {'name': object} or NAME=MODULE:OBJECT"),
        ({"a/b": TWICE}, "a model cannot be called 'a/b'"),
        (["a:double", "b:double"], "two models are called 'double'; NAME=MODULE:OBJECT gives one of them another name"),
    ],
    ids=["no object", "no name", "not decorated", "nameless", "path", "same name"],
)
def test_what_is_no_model(value: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        Settings(python_model=value)


def test_a_mistake_in_a_model_of_the_command_line_has_its_place() -> None:
    assert error("a:double", "b:double").startswith("argument 'b:double': two models are called 'double'")
    assert error("--python-model=double").startswith("option '--python-model': expected '[NAME=]MODULE:OBJECT'")


# Repositories


@pytest.mark.parametrize(
    ("repository", "paths"),
    [
        ("a", (Path("a"),)),
        (Path("a"), (Path("a"),)),
        (["a", Path("b"), "a"], (Path("a"), Path("b"))),
        ((Path("a"),), (Path("a"),)),
        ("s3", (Path("s3"),)),
        ("/mnt/s3:x", (Path("/mnt/s3:x"),)),
    ],
)
def test_repositories_are_paths_or_strings(repository: Any, paths: tuple[Path, ...]) -> None:
    assert Settings(model_repository=repository).repositories == paths


@pytest.mark.parametrize("repository", [[], (), None, 7, [7], {"a": "b"}], ids=str)
def test_what_is_no_repository(repository: Any) -> None:
    with pytest.raises(ValidationError):
        Settings(model_repository=repository)


REMOTE = ["s3://bucket/models", "s3://localhost:9000/bucket", "gs://bucket", "as://account/container/models"]


@pytest.mark.parametrize("remote", [*REMOTE, "https://host/models.tar.gz"])
def test_a_remote_repository(remote: str) -> None:
    settings = read(f"--model-repository={remote}").settings
    local, place = settings.repositories
    assert isinstance(place, RemotePlace)
    assert (str(place), local) == (remote, Path("models"))
    assert Settings(model_repository=["models", remote]) == Settings(model_repository=settings.repositories)


@pytest.mark.parametrize(
    ("remote", "said"),
    [
        ("https://host/models", "over HTTP a repository is an archive, .tar.gz, .tgz, .tar or .zip, got: "),
        ("HTTP://host", "over HTTP a repository is an archive, .tar.gz, .tgz, .tar or .zip, got: "),
        ("ftp://x", "there are no repositories of kind 'ftp://', got: ftp://x; expected s3://BUCKET/PREFIX, "),
        ("s3://", "expected s3://BUCKET/PREFIX, "),
    ],
)
def test_what_is_no_remote_repository(remote: str, said: str) -> None:
    assert error(f"--model-repository={remote}").startswith(f"option '--model-repository': {said}")


def test_a_secret_in_the_place_of_a_repository() -> None:
    text = error("--model-repository=s3://KEY:SECRET@bucket/models")
    assert "put them into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in text
    assert "SECRET@" not in text
    with pytest.raises(ValidationError) as caught:
        Settings(model_repository="s3://KEY:SECRET@bucket/models")
    assert "SECRET@" not in str(caught.value)
    settings = read("--model-repository=https://me:SECRET@host/models.zip?sig=SECRET").settings
    assert "SECRET" not in f"{settings}{settings!r}"


def test_a_remote_repository_as_a_path() -> None:
    with pytest.raises(ValidationError, match="write remote places as texts"):
        Settings(model_repository=Path("s3://bucket/models"))


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--htp-port=1"], "unknown option '--htp-port'; did you mean '--http-port'?"),
        (["--grpcport", "1"], "unknown option '--grpcport'; did you mean '--grpc-port'?"),
        (["--modelrepository=x"], "unknown option '--modelrepository'; did you mean '--model-repository'?"),
        (
            ["--tf-allow-soft-placement=1"],
            "unknown option '--tf-allow-soft-placement'; 'modserve --help-all' lists all options",
        ),
        (["--host", "127.0.0.1"], "unknown option '--host'; did you mean '--http-address'?"),
        (["--port=80"], "unknown option '--port'; did you mean '--http-port'?"),
        (["--models=x"], "unknown option '--models'; did you mean '--model-repository'?"),
        (["--xyzzy"], "unknown option '--xyzzy'; 'modserve --help-all' lists all options"),
        (["--"], "unknown option '--'; 'modserve --help-all' lists all options"),
        (["models"], "Unexpected argument: models"),
        (["-v"], "Unexpected argument: -v"),
        (["--http-port"], "option '--http-port' requires a value"),
        (["--http-thread-count"], "option '--http-thread-count' requires a value"),
        (["--http-port="], "option '--http-port': invalid value for integer option: "),
        (["--http-port=x"], "option '--http-port': invalid value for integer option: x"),
        (["--exit-timeout-secs=1.5"], "option '--exit-timeout-secs': invalid value for integer option: 1.5"),
        (["--allow-http=yes"], "option '--allow-http': invalid value for bool option: yes (expected true or false)"),
        (["--allow-http="], "option '--allow-http': invalid value for bool option:  (expected true or false)"),
        (["--log-verbose=much"], "option '--log-verbose': invalid value for integer option: much"),
        (["--cache-config=size=1"], "option '--cache-config': expected '<cache name>,<key>=<value>', got: size=1"),
        (
            ["--cache-config=local,size="],
            "option '--cache-config': expected '<cache name>,<key>=<value>', got: local,size=",
        ),
        (
            ["--cache-config=redis,host=a"],
            "option '--cache-config': cache 'redis' needs its address: 'redis,host=<name>' and 'redis,port=<number>'",
        ),
        (
            ["--cache-config=local,size=1", "--response-cache-byte-size=1"],
            "Incompatible flags --response-cache-byte-size and --cache-config both provided. Please provide one or the "
            "other.",
        ),
        (["--cache-config=local,size=x"], "option '--cache-config': invalid value for integer option: x"),
        *(
            (
                [f"--backend-config={text}"],
                f"option '--backend-config': expected '<backend name>,<key>=<value>' or '<key>=<value>', got: {text}",
            )
            for text in ("a", "a,=1", "=1", ",x=1", "x=", "a,x=")
        ),
        *(
            (
                [f"--{option}={text}"],
                f"option '--{option}': expected '<{word}>,<{word}>:<header>=<value>', got: {text}",
            )
            for option, word in (("http-restricted-api", "api"), ("grpc-restricted-protocol", "protocol"))
            for text in ("", "health", "health:", "health:k", "health:k=", "health:=v", ":k=v", "health,k=v")
        ),
        (
            ["--http-restricted-api=model-reposit,health:k1=v1"],
            "option '--http-restricted-api': unknown restricted api 'model-reposit'; allowed are health, metadata, "
            "inference, shared-memory, model-config, model-repository, statistics, trace, logging",
        ),
        (
            ["--grpc-restricted-protocol=health,:k1=v1"],
            "option '--grpc-restricted-protocol': unknown restricted protocol ''; allowed are health, metadata, "
            "inference, shared-memory, model-config, model-repository, statistics, trace, logging",
        ),
        (
            ["--http-restricted-api=model-repository,health:k1=v1", "--http-restricted-api=metadata,health:k2=v2"],
            "option '--http-restricted-api': restricted api 'health' can not be specified in multiple config groups",
        ),
        (
            ["--grpc-restricted-protocol=trace,trace:k1=v1"],
            "option '--grpc-restricted-protocol': restricted protocol 'trace' can not be specified in multiple config "
            "groups",
        ),
        (["--grpc-use-ssl=1"], "option '--grpc-use-ssl' needs '--grpc-server-cert'"),
        (["--grpc-use-ssl=1", CERTIFICATES[0]], "option '--grpc-use-ssl' needs '--grpc-server-key'"),
        (
            ["--grpc-use-ssl-mutual=1", *CERTIFICATES[:2]],
            "option '--grpc-use-ssl-mutual' needs '--grpc-root-cert'",
        ),
        (
            ["--http-use-ssl=1", "--http-server-cert=a"],
            "option '--http-use-ssl' needs '--http-server-key' or '--grpc-server-key'",
        ),
        (
            ["--grpc-infer-response-compression-level=most"],
            "option '--grpc-infer-response-compression-level': Input should be 'none', 'low', 'medium' or 'high', "
            "got: most",
        ),
        (
            ["--grpc-keepalive-time=0"],
            "option '--grpc-keepalive-time': Input should be greater than or equal to 1, got: 0",
        ),
        *(
            (
                [f"--trace-config={text}"],
                "option '--trace-config': --trace-config option format is '<trace mode>,<setting>=<value>' or "
                f"'<setting>=<value>'. Got {text}",
            )
            for text in ("", "rate", "rate=", "=1", ",rate=1", "triton,=1", "triton,file=")
        ),
        (
            ["--trace-config=opentelemetry,uri=localhost:4318/v1/traces"],
            "option '--trace-config': unknown setting 'uri' of trace mode opentelemetry; allowed are url, "
            "protocol, resource, bsp_max_queue_size, bsp_schedule_delay, bsp_max_export_batch_size",
        ),
        (
            ["--trace-config=mode=x"],
            "option '--trace-config': invalid value for trace mode option: x. Available options are \"triton\" and "
            '"opentelemetry"',
        ),
        (
            ["--trace-config=file=x"],
            "option '--trace-config': unknown trace setting 'file'; allowed are level, rate, count, mode, triton,file, "
            "triton,log-frequency and opentelemetry,<setting>",
        ),
        (
            ["--trace-level=much"],
            "option '--trace-level': invalid value for trace level option: much; expected OFF, TIMESTAMPS or TENSORS",
        ),
        (["--trace-config=rate=x"], "option '--trace-config': invalid value for integer option: x"),
        (["--trace-config=rate=-1"], "option '--trace-config': Input should be greater than or equal to 0, got: -1"),
        (["--http-port=65536"], "option '--http-port': Input should be less than or equal to 65535, got: 65536"),
        (["--grpc-port=-1"], "option '--grpc-port': Input should be greater than or equal to 0, got: -1"),
        (
            ["--http-max-input-size=0"],
            "option '--http-max-input-size': Input should be greater than or equal to 1, got: 0",
        ),
        (
            ["--model-control-mode=x"],
            "option '--model-control-mode': Input should be 'none', 'explicit' or 'poll', got: x",
        ),
        (["--load-model=a"], "Use of '--load-model' requires setting '--model-control-mode=explicit' as well."),
        (
            ["--model-control-mode=explicit", "--load-model=*", "--load-model=a"],
            "Wildcard model name '*' must be the ONLY startup model if specified at all.",
        ),
        (
            ["--repository-poll-secs=-1"],
            "option '--repository-poll-secs': Input should be greater than or equal to 0, got: -1",
        ),
        (
            ["--http-header-forward-pattern=x("],
            "option '--http-header-forward-pattern': not a regular expression: missing ), unterminated subpattern "
            "at position 1, got: x(",
        ),
        (
            ["--http-cors-allow-origin=page.example"],
            "option '--http-cors-allow-origin': not an origin; expected '*', or '<scheme>://<host>' with ':<port>' if "
            "it has one, got: page.example",
        ),
        (
            ["--http-allow-host=http://models.example"],
            "option '--http-allow-host': not the name of a host; expected '*', or a name without scheme and port, got: "
            "http://models.example",
        ),
        (
            ["--http-allow-host=models.example:8000"],
            "option '--http-allow-host': not the name of a host; expected '*', or a name without scheme and port, got: "
            "models.example:8000",
        ),
        (
            ["--http-port=-1", "--grpc-port=-2"],
            "option '--http-port': Input should be greater than or equal to 0, got: -1\n"
            "option '--grpc-port': Input should be greater than or equal to 0, got: -2",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake(arguments: list[str], text: str) -> None:
    assert error(*arguments) == text


@pytest.mark.parametrize(
    ("prefix", "listed"),
    [
        ("log-", "--log-error, --log-file, --log-format, --log-info, --log-multiline, --log-verbose, --log-warning"),
        ("allow-g", "--allow-gpu-metrics, --allow-grpc"),
    ],
)
def test_an_ambiguous_prefix(prefix: str, listed: str) -> None:
    assert error(f"--{prefix}=1") == f"option '--{prefix}' is ambiguous: {listed}"


def test_nothing_without_effect_is_suggested() -> None:
    for name in WITHOUT_EFFECT:
        assert f"'--{name}'?" not in error(f"--x{name}=1")


def test_a_whole_name_is_no_prefix() -> None:
    assert any(name != "rate-limit" and name.startswith("rate-limit") for name in OPTIONS)
    assert read("--rate-limit=Execution_Count").settings.rate_limit == "execution_count"


def test_a_mistake_in_the_environment() -> None:
    assert error(MODSERVE_HTTP_PORT="x") == (
        "environment variable MODSERVE_HTTP_PORT: invalid value for integer option: x"
    )
    assert error(MODSERVE_HTTP_PORT="80000") == (
        "environment variable MODSERVE_HTTP_PORT: Input should be less than or equal to 65535, got: 80000"
    )


def test_a_secret_is_not_printed() -> None:
    arguments = ["--http-restricted-api=health:k=SECRET", "--http-restricted-api=health:k=SECRET"]
    assert "SECRET" not in error(*arguments)


def test_no_repository() -> None:
    with pytest.raises(OptionError, match=r"^no model repository given; set '--model-repository DIR'$"):
        from_command_line([], {})


# The library


@pytest.mark.parametrize(
    ("given", "paths"),
    [
        ("a", (Path("a"),)),
        (Path("a"), (Path("a"),)),
        (["a", Path("b"), "a"], (Path("a"), Path("b"))),
        (("a",), (Path("a"),)),
    ],
    ids=["text", "path", "list", "tuple"],
)
def test_repositories_as_the_library_takes_them(given: Any, paths: tuple[Path, ...]) -> None:
    assert Settings(model_repository=given).model_repository == paths


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"model_repository": []},
        {"model_repository": 1},
        {"model_repository": "a", "nosuch": 1},
        {"model_repository": "a", "http_port": "x"},
        {"model_repository": "a", "http": 7},
    ],
    ids=["nothing", "no repository", "no path", "unknown", "no number", "no subject"],
)
def test_settings_that_are_none(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Settings(**fields)


def test_settings_do_not_change() -> None:
    settings = Settings(model_repository="a")
    with pytest.raises(ValidationError):
        settings.id = "x"  # type: ignore[misc]


def test_the_library_takes_subjects_as_well() -> None:
    flat = Settings(
        model_repository="a", http_port=1, http_max_input_size=2, grpc_max_connection_age=3, server_timing=True
    )
    nested = Settings(
        model_repository="a",
        http=HttpSettings(port=1, max_json=2, server_timing=True),
        grpc=GrpcSettings(max_connection_age=3, server_timing=True),
    )
    assert flat == nested
    assert Settings(model_repository="a", http=HttpSettings(port=1), http_idle_timeout=5).http == HttpSettings(
        port=1, idle_timeout=5
    )


@pytest.mark.parametrize(
    ("keyword", "message"),
    [
        ("http_prot", "there is no setting 'http_prot'; did you mean 'http_port'?"),
        ("xyzzy", "there is no setting 'xyzzy'"),
    ],
)
def test_a_misspelled_keyword(keyword: str, message: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        Settings(model_repository="a", **{keyword: 1})


def test_restrictions_as_the_library_takes_them() -> None:
    headers = {"health": ("key", "value")}
    assert Settings(model_repository="a", http_restricted_api=headers).http.restrictions == http_restrictions(headers)
    for wrong in ({"nosuch": ("key", "value")}, {"health": "key"}, {"health": ("key",)}, {"health": ("key", 1)}, 7):
        with pytest.raises(ValidationError):
            Settings(model_repository="a", http_restricted_api=wrong)


@pytest.mark.parametrize("settings", [HttpSettings(), GrpcSettings()], ids=["HTTP", "gRPC"])
def test_tls_files(settings: HttpSettings | GrpcSettings) -> None:
    assert settings.tls is None
    files: dict[str, Any] = {"server_cert": "c", "server_key": "k", "root_cert": "r"}
    one_sided = dataclasses.replace(settings, use_ssl=True, **files).tls
    assert one_sided == TlsFiles(Path("c"), Path("k"))
    mutual = dataclasses.replace(settings, use_ssl_mutual=True, **files).tls
    assert mutual == TlsFiles(Path("c"), Path("k"), Path("r"), True)


def test_http_takes_the_certificates_of_grpc_where_it_has_none() -> None:
    settings = read("--http-use-ssl=1", "--http-server-key=own.pem", *CERTIFICATES).settings
    assert settings.http.tls == TlsFiles(Path("cert.pem"), Path("own.pem"))
    assert settings.grpc.tls is None


# Options with a meaning of their own


def test_a_rate_limiter() -> None:
    options = ["--rate-limit=execution_count", "--rate-limit-resource=R1:10", "--rate-limit-resource=R2:5:0"]
    settings = read(*options, "--rate-limit-resource=R2:8:3", "--rate-limit-resource=R1:4").settings
    assert settings.rate_limit_resource == {("R1", None): 10, ("R2", 0): 5, ("R2", 3): 8}
    for text in ("R", ":1", "R:1:2:3"):
        expected = "expected '<resource name>:<count>' or '<resource name>:<count>:<device>'"
        assert error(f"--rate-limit-resource={text}") == f"option '--rate-limit-resource': {expected}, got: {text}"
    assert "invalid value for integer option: x" in error("--rate-limit-resource=R:x")
    assert "expected numbers of 0 or more, got: R:-1" in error("--rate-limit-resource=R:-1")
    assert "'--rate-limit=execution_count' needs '--workers=1'" in error("--rate-limit=execution_count", "--workers=2")
    assert read(options[1]).warnings == ("--rate-limit-resource has no effect without --rate-limit=execution_count",)


def test_what_the_metrics_page_has() -> None:
    line = read("--metrics-config=counter_latencies=false", "--metrics-config", "histogram_latencies=TRUE")
    assert (dict(line.settings.metrics_config), line.warnings) == (
        {"counter_latencies": "false", "histogram_latencies": "true"},
        (),
    )
    line = read("--metrics-config=summary_latencies=true", "--metrics-config=summary_quantiles=0.5:0.05,0.9:0.01")
    assert (line.settings.summary_quantiles, line.warnings) == (("0.5", "0.9"), ())
    assert read("--metrics-config=summary_latencies=false").settings.summary_quantiles == ()
    assert read("--metrics-config=summary_quantiles=.5,0.999:0.001").warnings == (
        "--metrics-config summary_quantiles has no effect without summary_latencies=true",
    )
    for text in ("x", "0.5:x", "2:0.1", "0.5:-1", "0.5;0.1", ","):
        assert f"'<quantile>:<error>,…' with numbers from 0 to 1, got: {text}" in error(
            f"--metrics-config=summary_quantiles={text}"
        )
    assert "unknown metrics setting 'odd'; allowed are counter_latencies" in error("--metrics-config=odd=1")
    assert "expected '<setting>=<value>', got: counter_latencies" in error("--metrics-config=counter_latencies")
    assert "invalid value for bool option: x" in error("--metrics-config=counter_latencies=x")
    assert Settings(model_repository="m", metrics_config={"counter_latencies": False}).metrics_config == {
        "counter_latencies": "false"
    }


def test_the_name_of_configurations() -> None:
    assert read("--model-config-name=h100-1.2_a").settings.model_config_name == "h100-1.2_a"
    for name in ("a b", "../a", "a/b"):
        assert "expected the name of a file in the models' folders 'configs'" in error(f"--model-config-name={name}")


# Memory of models


@pytest.mark.parametrize(
    ("text", "of_8_gb"),
    [
        ("0", 0),
        ("1000", 1000),
        ("10GB", 10**10),
        ("1.5 gb", 1_500_000_000),
        ("2GiB", 2**31),
        ("500MiB", 500 * 2**20),
        ("7B", 7),
        ("50%", 4 * 10**9),
        ("12.5%", 10**9),
    ],
)
def test_a_limit_of_memory(text: str, of_8_gb: int) -> None:
    assert read("--model-memory-limit", text).settings.model_memory_limit.of(8 * 10**9) == of_8_gb
    assert Settings(model_repository="models", model_memory_limit=text).model_memory_limit.of(8 * 10**9) == of_8_gb


@pytest.mark.parametrize("text", ["ten", "-1", "0%", "101%", "10XB", "GB", "1e9", ""])
def test_what_is_no_limit_of_memory(text: str) -> None:
    assert "expected bytes, a size such as 10GB" in error(f"--model-memory-limit={text}")


def test_a_limit_of_memory_from_a_program() -> None:
    assert Settings(model_repository="models", model_memory_limit=5).model_memory_limit.of(1) == 5
    assert read().settings.model_memory_limit.of(10**9) == 0


@pytest.mark.parametrize(
    ("arguments", "lazily"),
    [
        ([], "auto"),
        (["--load-lazily"], "true"),
        (["--load-lazily=off"], "false"),
        (["--load-lazily=AUTO"], "auto"),
        (["--load-lazily=1"], "true"),
    ],
)
def test_loading_lazily(arguments: list[str], lazily: str) -> None:
    assert read(*arguments).settings.load_lazily == lazily
    assert "invalid value for bool option" in error("--load-lazily=perhaps")


def test_keys(tmp_path: Path) -> None:
    environment = {"MODSERVE_API_KEY": "a-secret-of-a-server", "MODSERVE_AUTH_OPEN": "none"}
    line = from_command_line(["--model-repository", str(tmp_path), "--auth-file=keys.yaml"], environment)
    assert line.warnings == ()
    assert line.settings.auth_file == "keys.yaml"
    assert line.settings.auth_open == frozenset()
    key = line.settings.api_key
    assert key is not None
    assert key.get_secret_value() == "a-secret-of-a-server"
    assert "a-secret" not in repr(line.settings) + str(line.settings)


def test_what_needs_no_key(tmp_path: Path) -> None:
    words = ["--model-repository", str(tmp_path)]
    assert from_command_line(words, {}).settings.auth_open == {"health"}
    both = from_command_line([*words, "--auth-open=health", "--auth-open=metrics"], {}).settings
    assert both.auth_open == {"health", "metrics"}
    with pytest.raises(OptionError, match="option '--auth-open'"):
        from_command_line([*words, "--auth-open=everything"], {})
    with pytest.raises(OptionError, match="a key is no option, since lists of processes show options"):
        from_command_line([*words, "--api-key=a-secret-of-a-server"], {})


def test_words_that_are_no_text() -> None:
    """They would come back in answers, which cannot have them."""
    wrong = "caf\udce9"
    assert error(f"--log-file={wrong}") == "option '--log-file' is not UTF-8"
    assert error("--load-model", wrong) == "option '--load-model' is not UTF-8"
    assert error(f"./{wrong}.onnx") == r"argument './caf\udce9.onnx' is not UTF-8"
    assert error(MODSERVE_LOG_FILE=wrong) == "environment variable MODSERVE_LOG_FILE is not UTF-8"
    assert read("--log-file=caf\xe9").settings.log.file == "caf\xe9"


@pytest.mark.parametrize(
    "pattern", [".", "^x-|auth", "(?s).*", "(?x) x-api-key # the key", "(?-i)^authorization$|admin|.*user"]
)
@pytest.mark.parametrize("subject", ["http", "grpc"])
def test_headers_with_secrets_are_not_forwarded_to_models(pattern: str, subject: str) -> None:
    restricted = {"http": "http_restricted_api", "grpc": "grpc_restricted_protocol"}[subject]
    options: dict[str, Any] = {
        f"{subject}_header_forward_pattern": pattern,
        restricted: {"logging": ("Admin-Key", "s")},
    }
    names = ("authorization", "Authorization", "X-API-Key", "x-user", "X-Admin-Key2")
    opener = {"http": "admin-key", "grpc": "triton-grpc-protocol-admin-key"}[subject]
    for keys, secrets in (({}, {opener}), ({"api_key": "k" * 20}, {opener, *HEADERS})):
        before = header_pattern(pattern)
        after = getattr(Settings(model_repository="models", **options, **keys), subject).header_pattern
        for name in (*names, *HEADERS, opener, opener.title()):
            assert bool(after.search(name)) == (bool(before.search(name)) and name.lower() not in secrets), name


def test_headers_with_keys_are_forwarded_where_the_server_has_none() -> None:
    pattern = Settings(model_repository="models", http_header_forward_pattern="authorization").http.header_pattern
    assert pattern == re.compile("authorization", re.IGNORECASE)


def test_the_names_of_secrets_are_those_that_are_read() -> None:
    assert {name.decode() for name in credentials.HEADERS} <= HEADERS
    assert {KEY_VARIABLE, PASSWORD_VARIABLE} <= set(VARIABLES)
    options = {f"MODSERVE_{name.upper().replace('-', '_')}" for name in OPTIONS}
    assert {name for name in VARIABLES if name.startswith("MODSERVE_")} - {KEY_VARIABLE} <= options


def test_the_password_of_a_cache_is_read_before_its_variable_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "secret")
    settings = Settings(model_repository="models", cache_config="redis,host=h,port=1")
    monkeypatch.delenv(PASSWORD_VARIABLE)
    redis = settings.cache.redis
    assert redis is not None
    assert redis.password == "secret"
