"""Options for who may call a server."""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, SecretStr

from .options import option

VARIABLE = "MODSERVE_API_KEY"
"""The environment variable with the only key of a server. No option: lists of processes show options."""

SECRET_VARIABLES = (VARIABLE, "MODSERVE_HTTP_RESTRICTED_API", "MODSERVE_GRPC_RESTRICTED_PROTOCOL")
"""Environment variables with secrets of callers, which the processes of models do not inherit."""

FILE: Any = option(
    "",
    "File of keys, tenants, token issuers and certificates, without which callers are refused; 'modserve keys' writes "
    f"it, and the server follows its changes. The environment variable {VARIABLE} is a key by itself.",
    section="access",
)


def _open(value: object) -> object:
    return {each for each in value if each != "none"} if isinstance(value, list | tuple | set | frozenset) else value


Open: TypeAlias = Annotated[frozenset[Literal["health", "metrics"]], BeforeValidator(_open)]
OPEN: Any = option(
    frozenset({"health"}),
    "What needs no key where callers need one: health (of the server), metrics, or none; may be repeated.",
    value="health|metrics|none",
    several=True,
    default_in_words="health",
)
Key: TypeAlias = SecretStr | None


def variable(environment: Any) -> dict[str, str]:
    """The keyword for a key in the environment, if there is one."""
    return {"api_key": environment[VARIABLE]} if environment.get(VARIABLE) else {}
