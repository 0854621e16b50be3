"""Options for who may call a server."""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, SecretStr

from modserve.core.secret_names import KEY_VARIABLE

from .options import option

FILE: Any = option(
    "",
    "File of keys, tenants, token issuers and certificates, without which callers are refused; 'modserve keys' writes "
    f"it, and the server follows its changes. The environment variable {KEY_VARIABLE} is a key by itself.",
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
    return {"api_key": environment[KEY_VARIABLE]} if environment.get(KEY_VARIABLE) else {}
