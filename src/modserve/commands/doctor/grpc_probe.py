"""Probe of the gRPC port of a running server: the calls open to callers without a key. No call changes anything."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from modserve.client.address import CONNECT_SECONDS, Address
from modserve.pb import inference as pb

from ..errors import UnreachableError
from . import tls_probe
from .checks import OK, PROBLEM, Check
from .security_checks import CONTROL_ADVICE, KEYS_ADVICE, TLS_ADVICE, is_loopback, level_at

_NOBODY: Final = "modserve-doctor-none"
"""Name of a model that does not exist."""
_SERVICE: Final = "/inference.GRPCInferenceService/"
_REFUSALS: Final = ("UNAUTHENTICATED", "PERMISSION_DENIED")
_ABSENT: Final = "UNIMPLEMENTED"
"""Status of unknown calls, and of calls served only at the admin port."""
_RESTRICTED: Final = "triton-grpc-protocol-"
"""Part of a refusal's text if the call needs a header."""
_CERTIFICATE: Final = "a client certificate"


class _Call(NamedTuple):
    name: str
    rpc: str
    request: Any
    text: str
    advice: str
    otherwise: str = "is not implemented"
    """Part of a failure's text if the server does not serve the call at all."""


_CALLS: Final = (
    _Call("read", "ModelMetadata", pb.ModelMetadataRequest(name=_NOBODY), "metadata of every model", KEYS_ADVICE),
    _Call("infer", "ModelInfer", pb.ModelInferRequest(model_name=_NOBODY), "inference with every model", KEYS_ADVICE),
    _Call(
        "model control",
        "RepositoryModelUnload",
        pb.RepositoryModelUnloadRequest(model_name=_NOBODY),
        "loads and unloads of models, with configurations and files of the caller",
        f"{CONTROL_ADVICE.format('model-repository')}; or --model-control-mode=none",
        "is not allowed",
    ),
    _Call("logs", "LogSettings", pb.LogSettingsRequest(), "the settings of the log", CONTROL_ADVICE.format("logging")),
    _Call("traces", "TraceSetting", pb.TraceSettingRequest(), "the settings of traces", CONTROL_ADVICE.format("trace")),
    _Call(
        "shared memory",
        "SystemSharedMemoryStatus",
        pb.SystemSharedMemoryStatusRequest(),
        "lists of shared memory, and its registration if the server allows that",
        CONTROL_ADVICE.format("shared-memory"),
    ),
    _Call("statistics", "ModelStatistics", pb.ModelStatisticsRequest(), "how much each model is used", KEYS_ADVICE),
)


def all_checks(address: Address) -> Iterator[Check]:
    """Yield a check for each kind of call. Raises UnreachableError if no server answers."""
    import grpc

    level = level_at([address.host])
    if address.secure:
        yield from tls_probe.checks(address)
        if tls_probe.needs_certificate(address):
            yield Check(OK, "calls", f"none without {_CERTIFICATE}")
            return
        # Who answers learns nothing, so its certificate is trusted, under whatever name.
        credentials = grpc.ssl_channel_credentials(tls_probe.certificate_of(address))
        channel = grpc.secure_channel(address.authority, credentials, tls_probe.name_options(address))
    else:
        if is_loopback(address.host):
            yield Check(OK, "TLS", "off, which is enough inside this machine")
        else:
            text = "off: others on the way read and change requests, responses and keys"
            yield Check(PROBLEM, "TLS", text, TLS_ADVICE.format("grpc"))
        channel = grpc.insecure_channel(address.authority)
    with channel:
        code, text = _call(channel, "ServerLive", pb.ServerLiveRequest())
        if code not in ("OK", *_REFUSALS) and _RESTRICTED not in text:
            raise UnreachableError(f"cannot reach {address}: {text}")
        yield Check(OK, "health", "open, for probes" if code == "OK" else "needs a key")
        for each in _CALLS:
            code, text = _call(channel, each.rpc, each.request)
            if code in _REFUSALS or _RESTRICTED in text:
                yield Check(OK, each.name, "refused without a key or header")
            elif code == _ABSENT or each.otherwise in text:
                yield Check(OK, each.name, f"not served: {text[:200]}")
            else:
                yield Check(level, each.name, f"open: {each.text}", each.advice)


def _call(channel: Any, rpc: str, request: Any) -> tuple[str, str]:
    """Make a call, and return its status and message."""
    import grpc

    call = channel.unary_unary(_SERVICE + rpc, type(request).SerializeToString, lambda response: response)
    try:
        call(request, timeout=CONNECT_SECONDS)
    except grpc.RpcError as error:
        return error.code().name, error.details() or ""
    return "OK", ""
