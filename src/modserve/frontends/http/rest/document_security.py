"""What OpenAPI documents say of keys, where calls need some."""

from collections.abc import Iterator
from typing import Any, Final

from modserve.access.authority import Authority
from modserve.access.calls import CallNeed, Reach, need_of

_SCHEMES: Final = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "A key, or a token of an issuer that is known."},
    "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
_CERTIFICATE: Final = {
    "certificate": {"type": "mutualTLS", "description": "A client certificate for which the server has a rule."}
}
_CHALLENGE: Final = {"WWW-Authenticate": {"schema": {"type": "string"}}}
_UNAUTHENTICATED: Final = "There is no valid key"
_FAILURES: Final = ("400", "404", "422", "500", "503")
"""Of which a call has one: refusals have the same body."""


def add_security(document: dict[str, Any], authority: Authority) -> None:
    """Add the ways to send a key, which calls need one, and how those without are refused."""
    schemes = {**_SCHEMES, **(_CERTIFICATE if authority.knows_certificates else {})}
    document["components"]["securitySchemes"] = schemes
    for operation, need in _operations(document):
        if authority.is_open(need):
            continue
        operation["security"] = [{name: []} for name in schemes]
        responses = operation["responses"]
        bodies = [responses[status]["content"] for status in _FAILURES if "content" in responses.get(status, ())]
        body = bodies[0] if bodies else {}
        responses["401"] = _refusal(_UNAUTHENTICATED, body)
        if need.reach is not Reach.ANY:
            responses["403"] = _refusal(f"The key has no scope '{need.kind}' for this", body)


def _operations(document: dict[str, Any]) -> Iterator[tuple[dict[str, Any], CallNeed]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield operation, need_of(method.upper(), path)[0]


def _refusal(description: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "headers": _CHALLENGE, **({"content": body} if body else {})}
