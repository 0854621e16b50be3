"""Probe of a running server: the calls open to callers without a key, one of each kind. No call changes anything."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from modserve.client.address import Address

from ..errors import UnreachableError
from . import tls_probe
from .checks import OK, PROBLEM, WARNING, Check
from .keyless_call import StatusText, ask
from .security_checks import CONTROL_ADVICE, KEYS_ADVICE, TLS_ADVICE, is_loopback, level_at

_NOBODY = "modserve-doctor-none"
"""Name of a model that does not exist."""
_REFUSALS = (401, 403)
_ABSENT = "Not Found"
_CONTROL_ADVICE = (
    "loads, unloads, drains and settings through it reach one server: '--url' and --peers take the servers' own "
    "addresses, http://HOST:PORT,http://HOST:PORT or dns:///NAME:PORT"
)


class _Probe(NamedTuple):
    """Call. It is open unless its status is a refusal, or its text says that it does not exist, or `otherwise`."""

    name: str
    method: str
    path: str
    text: str
    advice: str
    otherwise: str = _ABSENT


_PROBES = (
    _Probe("read", "GET", "/v2/models", "lists of models, their metadata and configurations", KEYS_ADVICE),
    _Probe("infer", "POST", f"/v2/models/{_NOBODY}/infer", "inference with every model", KEYS_ADVICE),
    _Probe("texts", "POST", "/v1/embeddings", "calls of texts with every model", KEYS_ADVICE),
    _Probe(
        "model control",
        "POST",
        f"/v2/repository/models/{_NOBODY}/unload",
        "loads and unloads of models, with configurations and files of the caller",
        f"{CONTROL_ADVICE.format('model-repository')}; or --model-control-mode=none",
        "is not allowed",
    ),
    _Probe("logs", "GET", "/v2/logging", "the settings of the log", CONTROL_ADVICE.format("logging")),
    _Probe("traces", "GET", "/v2/trace/setting", "the settings of traces", CONTROL_ADVICE.format("trace")),
    _Probe(
        "shared memory",
        "GET",
        "/v2/systemsharedmemory/status",
        "lists of shared memory, and its registration if the server allows that",
        CONTROL_ADVICE.format("shared-memory"),
    ),
    _Probe("statistics", "GET", "/v2/models/stats", "how much each model is used", KEYS_ADVICE),
)


def all_checks(address: Address) -> Iterator[Check]:
    """Yield a check for each kind of call. Raises UnreachableError if no server answers."""
    level = level_at([address.host])
    if address.secure:
        yield from tls_probe.checks(address)
        if tls_probe.needs_certificate(address):
            yield Check(OK, "calls", "none without a client certificate")
            return
    health = ask(address, "GET", "/v2/health/live")
    if health.status not in (200, 503, *_REFUSALS):
        raise UnreachableError(f"{address} does not speak the protocol: /v2/health/live has status {health.status}")
    if not address.secure and is_loopback(address.host):
        yield Check(OK, "TLS", "off, which is enough inside this machine")
    elif not address.secure:
        text = "off: others on the way read and change requests, responses and keys"
        yield Check(PROBLEM, "TLS", text, TLS_ADVICE.format("http"))
    yield Check(OK, "health", "needs a key" if health.status in _REFUSALS else "open, for probes")
    responses = [ask(address, probe.method, probe.path) for probe in _PROBES]
    yield from _gateway([health, *responses])
    for probe, response in zip(_PROBES, responses, strict=True):
        if response.status in _REFUSALS:
            yield Check(OK, probe.name, "refused without a key or header")
        elif probe.otherwise in response.text or _ABSENT in response.text:
            yield Check(OK, probe.name, f"not served: {response.text[:200]}")
        else:
            yield Check(level, probe.name, f"open: {probe.text}", probe.advice)
    yield from _metrics(address, level)


def _gateway(responses: Sequence[StatusText]) -> Iterator[Check]:
    """Report a gateway, workers or several servers; nothing if a single server responds."""
    software = ", ".join(dict.fromkeys(each.software for each in responses if each.software))
    processes = len({each.process for each in responses if each.process})
    seen = f"{processes} processes have responded to {len(responses)} calls"
    if software:
        yield Check(
            WARNING, "gateway", f"calls pass {software}" + (f"; {seen}" if processes > 1 else ""), _CONTROL_ADVICE
        )
    elif processes > 1:
        yield Check(OK, "gateway", f"{seen}: workers of one server, or several servers behind a gateway")


def _metrics(address: Address, level: str) -> Iterator[Check]:
    own = ask(address, "GET", "/metrics")
    if own.status == 200:
        text = "open at this port: names of models, and how much each is used"
        yield Check(level, "metrics", text, KEYS_ADVICE)
        return
    refused = own.status in _REFUSALS
    yield Check(OK, "metrics", "refused without a key or header" if refused else f"not served: {own.text[:200]}")
