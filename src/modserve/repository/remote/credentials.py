"""Credentials for buckets: Triton's credential file and environment variables, and the libraries' own sources.

The variables are those in Triton's ``S3Credential``, ``GCSCredential`` and ``ASCredential``. The file named by
``TRITON_CLOUD_CREDENTIAL_PATH`` has objects ``s3``, ``gs`` and ``as``; in each, the longest name that is a prefix of
the repository's location wins, and the empty name matches all others. Without either, the library finds credentials.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from modserve.core.files.remote_place import RemotePlace

from .failures import unreadable

if TYPE_CHECKING:
    from obstore.auth.boto3 import Boto3CredentialProvider

PATH = "TRITON_CLOUD_CREDENTIAL_PATH"
_FIELDS = {
    "s3": ("key_id", "secret_key", "session_token", "region", "profile"),
    "gs": ("path",),
    "as": ("account_str", "account_key", "auth_type", "client_id"),
}
_VARIABLES = {
    "key_id": "AWS_ACCESS_KEY_ID",
    "secret_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
    "region": "AWS_DEFAULT_REGION",
    "profile": "AWS_PROFILE",
    "path": "GOOGLE_APPLICATION_CREDENTIALS",
    "account_str": "AZURE_STORAGE_ACCOUNT",
    "account_key": "AZURE_STORAGE_KEY",
    "auth_type": "AZURE_STORAGE_AUTH_TYPE",
    "client_id": "AZURE_STORAGE_CLIENT_ID",
}
"""Equivalent environment variables, by field of the file."""

Credentials = dict[str, str]
"""Credentials by the names of the file's fields; empty ones are omitted."""


def credentials_of(place: RemotePlace, environment: Mapping[str, str] = os.environ) -> Credentials:
    """Return the file's credentials for a place, or without a file the variables'. Blocking. Raises INVALID_ARG.

    As in Triton, a file replaces the variables altogether.
    """
    fields = _FIELDS[place.scheme]
    file = environment.get(PATH, "")
    if not file:
        return {name: environment[_VARIABLES[name]] for name in fields if environment.get(_VARIABLES[name])}
    described = _section(place, file)
    names = sorted((name for name in described if str(place).startswith(name)), key=len)
    if not names:
        raise unreadable(place, f"{PATH} is set, and '{file}' has no credentials for it under '{place.scheme}'")
    entry = described[names[-1]]
    if place.scheme == "gs" and isinstance(entry, str):
        return {"path": entry} if entry else {}
    if not isinstance(entry, dict) or not all(isinstance(entry.get(name, ""), str) for name in fields):
        expected = "a text" if place.scheme == "gs" else f"an object of the texts {', '.join(fields)}"
        raise unreadable(place, f"in '{file}', '{place.scheme}' has for '{names[-1]}' no {expected.partition(' ')[2]}")
    return {name: entry[name] for name in fields if entry.get(name)}


def _section(place: RemotePlace, file: str) -> dict[str, object]:
    try:
        content = json.loads(Path(file).read_bytes())
    except OSError as error:
        raise unreadable(place, f"cannot read '{file}', which {PATH} names: {error.strerror}") from error
    except ValueError as error:
        raise unreadable(place, f"'{file}', which {PATH} names, is not JSON") from error
    section = content.get(place.scheme, {}) if isinstance(content, dict) else None
    if not isinstance(section, dict):
        raise unreadable(place, f"'{file}', which {PATH} names, must be an object with objects 's3', 'gs' and 'as'")
    return section


class S3Access(NamedTuple):
    """Method of signing requests: keys, boto3's credentials, or the library's default."""

    config: dict[str, str]
    provider: "Boto3CredentialProvider | None" = None


def s3_access(place: RemotePlace, known: Credentials) -> S3Access:
    """Return the access for a place. Blocking. Raises INVALID_ARG for a profile without boto3, or a missing one."""
    region = {"region": known["region"]} if "region" in known else {}
    if "key_id" in known and "secret_key" in known:
        token = {"session_token": known["session_token"]} if "session_token" in known else {}
        keys = {"access_key_id": known["key_id"], "secret_access_key": known["secret_key"]}
        return S3Access({**region, **keys, **token})
    if os.environ.get("AWS_SKIP_SIGNATURE"):
        return S3Access(region)
    profile = known.get("profile")
    try:
        import boto3
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        if profile is None:
            return S3Access(region)
        raise unreadable(place, f"profile '{profile}' needs boto3: pip install boto3") from None
    try:
        session = boto3.Session(profile_name=profile, region_name=known.get("region"))
        provider = Boto3CredentialProvider(session)
    except ValueError:  # no credentials
        return S3Access(region)
    except BotoCoreError as error:
        why = "cannot be used" if profile else "credentials cannot be read"
        raise unreadable(place, f"profile '{profile or 'default'}' of boto3 {why}: {type(error).__name__}") from error
    return S3Access({"region": session.region_name} if session.region_name else {}, provider)
