"""Restricted APIs: the calls of each category, over both protocols, and who may make them.

The categories and the refusals are Triton's (``--http-restricted-api``, ``--grpc-restricted-protocol``); paths and RPCs
that Triton lacks belong to the category of similar ones.
"""

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

CategoryT = TypeVar("CategoryT", bound=str)


@dataclass(frozen=True, slots=True)
class Calls:
    """RPCs by name, and path templates; paths of models are also served below ``/versions/{version}``,
    paths of v1 models below ``/labels/{label}`` as well."""

    rpcs: tuple[str, ...]
    paths: tuple[str, ...] = ()
    model_paths: tuple[str, ...] = ()
    """Rest of the path after ``/v2/models/{model}``."""
    v1_paths: tuple[str, ...] = ()
    """Rest of the path after ``/v1/models/{model}``: KServe v1 and TensorFlow Serving. Its status is its health."""
    admin_paths: tuple[str, ...] = ()
    """More paths, of pages for operators."""
    for_operators: bool = False
    """True if other ports do not serve these calls when there is an admin port."""


DRAIN = "/v2/health/drain"
METRICS_PAGE = "/metrics"
STACKS = "/v2/stacks"

_OPENAI_CALLS = ("embeddings", "rerank", "score", "chat/completions", "completions", "responses")
_VERBS = ("status", "register", "unregister")

CATEGORIES: Mapping[str, Calls] = {
    "health": Calls(
        ("ServerLive", "ServerReady", "ModelReady", "Check", "Watch", "List"),
        paths=("/", "/health", "/v2/health/live", "/v2/health/ready"),
        model_paths=("/ready",),
        v1_paths=("",),
    ),
    "metadata": Calls(
        ("ServerMetadata", "ModelMetadata"),
        paths=(
            *("/v2", "/v2/models", "/v1/models", "/info", "/version"),
            *("/openai/v1/models", "/openai/v1/models/{model}"),
        ),
        admin_paths=("/docs/examples/{model}", "/docs/snippets/{model}", "/console/texts/{model}"),
        model_paths=("", "/engine", "/openapi.json"),
        v1_paths=("/metadata",),
    ),
    "inference": Calls(
        ("ModelInfer", "ModelStreamInfer"),
        paths=(
            *(f"{prefix}/v1/{call}" for prefix in ("", "/openai") for call in _OPENAI_CALLS),
            *("/v2/rerank", "/embeddings", "/score"),
            *(f"/{call}" for call in ("embed", "rerank", "predict", "similarity", "tokenize", "decode")),
        ),
        model_paths=("/infer", "/infer_stream", "/generate", "/generate_stream"),
        v1_paths=(":predict", ":classify", ":regress", ":explain"),
    ),
    "shared-memory": Calls(
        tuple(f"{kind}SharedMemory{verb.title()}" for kind in ("System", "Cuda") for verb in _VERBS),
        paths=tuple(
            f"/v2/{kind}sharedmemory{region}/{verb}"
            for kind in ("system", "cuda")
            for region in ("", "/region/{region}")
            for verb in _VERBS
        ),
    ),
    "model-config": Calls(("ModelConfig",), model_paths=("/config",)),
    "model-repository": Calls(
        ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
        paths=(
            "/v2/models/{model}/routing",
            DRAIN,
            *("/models", "/models/{model}"),  # SageMaker's
            *(
                f"/v2/repository{repository}{path}"
                for repository in ("", "/{repository}")
                for path in ("/index", "/models/{model}/load", "/models/{model}/unload")
            ),
        ),
        for_operators=True,
    ),
    "statistics": Calls(
        ("ModelStatistics", "StreamCoreMetrics"),
        paths=("/v2/models/stats", "/v2/memory"),
        model_paths=("/stats", "/batches"),
        admin_paths=("/console/events", "/console/peers", METRICS_PAGE),
    ),
    "trace": Calls(
        ("TraceSetting",), paths=("/v2/trace/setting",), model_paths=("/trace/setting",), for_operators=True
    ),
    "logging": Calls(("LogSettings",), paths=("/v2/logging", STACKS, "/console/failures"), for_operators=True),
}

OPEN_PATHS = frozenset({"/docs", "/openapi.json", "/console", "/console/about"})
"""Paths of no category: the documentation and the console's page, which are the same for every server, and what that
page may do, which refusals say as well."""

RPC_CATEGORY = {rpc: category for category, calls in CATEGORIES.items() for rpc in calls.rpcs}


_MODELS = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
_V1_MODELS = ("/v1/models/{model}", "/v1/models/{model}/versions/{version}", "/v1/models/{model}/labels/{label}")


def _templates(calls: Calls) -> Iterable[str]:
    yield from (*calls.paths, *calls.admin_paths)
    for prefixes, suffixes in ((_MODELS, calls.model_paths), (_V1_MODELS, calls.v1_paths)):
        yield from (prefix + suffix for prefix in prefixes for suffix in suffixes)


PATH_CATEGORY = {template: category for category, calls in CATEGORIES.items() for template in _templates(calls)}
"""Categories by path template, in which a name in braces stands for any one part of a path."""

METHOD_CATEGORY: Mapping[tuple[str, str], str] = {("POST", "/"): "inference"}
"""Categories by method and path template, of methods that are for something else than the others of their path."""

ADMIN_PATHS = OPEN_PATHS | {
    template
    for calls in CATEGORIES.values()
    for template in (_templates(calls) if calls.for_operators else calls.admin_paths)
}
"""Path templates that only the admin port serves, if there is one: changes of the server or its models, Triton's
groups as a whole, and pages for operators. Clients that infer with shared memory register it."""
ADMIN_RPCS = frozenset(rpc for calls in CATEGORIES.values() if calls.for_operators for rpc in calls.rpcs)
"""RPCs that are not served if there is an admin port, which does not serve gRPC."""

GRPC_PREFIX = "triton-grpc-protocol-"


@dataclass(frozen=True, slots=True)
class Restriction:
    """Calls need the header `name` (in any case) with `value`; `word` names what is restricted in Triton's text."""

    name: str
    value: str
    word: str

    @property
    def refusal(self) -> str:
        return f"This {self.word} is restricted, expecting header '{self.name}'"

    def granted(self, headers: Iterable[tuple[str | bytes, str | bytes]]) -> bool:
        """True if the headers, with lower-case names, permit the call. Timing reveals nothing about the value."""
        name, value = self.name.lower().encode(), self.value.encode()
        values = [_bytes(text) for key, text in headers if _bytes(key) == name]
        return len(values) == 1 and hmac.compare_digest(values[0], value)


def http_restrictions(settings: Mapping[CategoryT, tuple[str, str]]) -> dict[str, Restriction]:
    """Return HTTP restrictions by category, from settings of header names and values by category."""
    return {category: Restriction(name, value, "API") for category, (name, value) in settings.items()}


def grpc_restrictions(settings: Mapping[CategoryT, tuple[str, str]]) -> dict[str, Restriction]:
    """Return gRPC restrictions as `http_restrictions` does; the header's name gets a prefix."""
    return {
        category: Restriction(GRPC_PREFIX + name, value, "protocol") for category, (name, value) in settings.items()
    }


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
