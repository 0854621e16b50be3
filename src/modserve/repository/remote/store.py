"""Makes obstore's client for a bucket."""

import os
import re
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from modserve.core.files.remote_place import RemotePlace
from modserve.core.pip_command import pip_install

from .credentials import Credentials, credentials_of, s3_access
from .failures import unreadable

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_MOST_WORDS = 200


def open_store(place: RemotePlace, timeout_s: float) -> "ObjectStore":
    """Blocking. Raises INVALID_ARG where the library, a profile or a credential file cannot be used."""
    try:
        from obstore.store import AzureStore, GCSStore, S3Store
    except ImportError as error:
        raise unreadable(place, f"this needs the library obstore: {pip_install('remote')}") from error
    known = credentials_of(place)
    config: dict[str, Any]
    provider: dict[str, Any] = {}
    if place.scheme == "s3":
        access = s3_access(place, known)
        endpoint = place.endpoint or os.environ.get("AWS_ENDPOINT_URL_S3", "")
        config = {**access.config, **({"endpoint": endpoint} if endpoint else {})}
        provider = {} if access.provider is None else {"credential_provider": access.provider}
    elif place.scheme == "gs":
        config = {"application_credentials": known["path"]} if "path" in known else {}
    else:
        config = _azure(place, known)
    kinds: dict[str, Callable[..., ObjectStore]] = {"s3": S3Store, "gs": GCSStore, "as": AzureStore}
    try:
        return kinds[place.scheme](place.bucket, config=config, **provider, **_patience(timeout_s))
    except Exception as error:
        raise unreadable(place, f"its client cannot be made: {_harmless(error)}") from error


def _azure(place: RemotePlace, known: Credentials) -> dict[str, str]:
    names = {"account_str": "account_name", "account_key": "account_key", "client_id": "client_id"}
    config = {"account_name": place.account} | {names[name]: known[name] for name in names if name in known}
    if known.get("auth_type") == "managed_identity":
        config["credential_type"] = "managed_identity"
    return config


def _patience(timeout_s: float) -> dict[str, Any]:
    client = {
        "allow_http": True,
        "connect_timeout": timedelta(seconds=timeout_s),
        "read_timeout": timedelta(seconds=timeout_s),
        "timeout": timedelta(days=7),  # of a whole download; one that stands still ends by the time-out before
    }
    backoff = {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=2), "base": 2}
    retries = {"max_retries": 2, "retry_timeout": timedelta(seconds=2 * timeout_s), "backoff": backoff}
    return {"client_options": client, "retry_config": retries}


def _harmless(error: Exception) -> str:
    """The first line of what a library says, if no secret of the environment is in it."""
    line = str(error).partition("\n")[0]
    secrets = [value for name, value in os.environ.items() if _SECRET.search(name) and value]
    harmless = len(line) <= _MOST_WORDS and not any(value in line for value in secrets)
    return line if harmless else type(error).__name__
