"""Names of operators' and callers' secrets, which never leave the server's own process."""

from typing import Final

KEY_VARIABLE: Final = "MODSERVE_API_KEY"
"""The environment variable with the only key of a server. No option: lists of processes show options."""

VARIABLES: Final = (
    KEY_VARIABLE,
    "MODSERVE_HTTP_RESTRICTED_API",
    "MODSERVE_GRPC_RESTRICTED_PROTOCOL",
    "MODSERVE_CACHE_CONFIG",  # the password of a Redis
    "TRITONCACHE_REDIS_PASSWORD",
    "MODSERVE_MODEL_REPOSITORY",  # user, password or signature in the address of an archive
    "MODSERVE_TRACE_CONFIG",  # the same in that of a collector
)
"""Environment variables that models and their processes do not get."""

HEADERS: Final = frozenset(
    {"authorization", "proxy-authorization", "cookie", "x-api-key", "api-key", "x-amz-security-token", "x-auth-token"}
)
"""Headers and gRPC metadata that authenticate clients. No file of recorded requests has them; if callers need keys,
models do not get them either. Options name further headers, which open restricted calls."""
