"""Credentials: Triton's variables, its file, and what the libraries find by themselves."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from remote_fixtures import PLACE, place_of

from modserve.core.errors import Code, ModserveError
from modserve.core.pip_command import pip_install
from modserve.repository.remote.bucket import open_store
from modserve.repository.remote.credentials import credentials_of, s3_access

GS, AZURE = place_of("gs://bucket/models"), place_of("as://account/container/models")


def write(tmp_path: Path, content: Any) -> dict[str, str]:
    file = tmp_path / "credentials.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return {"TRITON_CLOUD_CREDENTIAL_PATH": str(file)}


def test_variables() -> None:
    environment = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_SESSION_TOKEN": "token",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_PROFILE": "",
        "GOOGLE_APPLICATION_CREDENTIALS": "/key.json",
        "AZURE_STORAGE_ACCOUNT": "acc",
        "AZURE_STORAGE_KEY": "azure",
    }
    assert credentials_of(PLACE, environment) == {
        "key_id": "key",
        "secret_key": "secret",
        "session_token": "token",
        "region": "eu-central-1",
    }
    assert credentials_of(GS, environment) == {"path": "/key.json"}
    assert credentials_of(AZURE, environment) == {"account_str": "acc", "account_key": "azure"}
    assert credentials_of(PLACE, {}) == {}


def test_the_file(tmp_path: Path) -> None:
    environment = {"AWS_ACCESS_KEY_ID": "not this"} | write(
        tmp_path,
        {
            "s3": {
                "": {"key_id": "all", "secret_key": "s", "region": ""},
                "s3://bucket": {"key_id": "bucket", "profile": "p"},
                "s3://bucket/models/": {"key_id": "deeper"},
            },
            "gs": {"": "/key.json"},
            "as": {"as://account/container": {"account_str": "a", "account_key": "k"}},
        },
    )
    assert credentials_of(PLACE, environment) == {"key_id": "bucket", "profile": "p"}
    assert credentials_of(place_of("s3://bucket/models/x"), environment) == {"key_id": "deeper"}
    assert credentials_of(place_of("s3://other"), environment) == {"key_id": "all", "secret_key": "s"}
    assert credentials_of(GS, environment) == {"path": "/key.json"}
    assert credentials_of(AZURE, environment) == {"account_str": "a", "account_key": "k"}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "is not JSON"),
        ([], "must be an object with objects"),
        ({"s3": "SECRET"}, "must be an object with objects"),
        ({"s3": {"": "SECRET"}}, "'s3' has for '' no object of the texts key_id, secret_key"),
        ({"s3": {"": {"key_id": ["SECRET"]}}}, "'s3' has for '' no object of the texts"),
        ({"s3": {"s3://other": {}}}, "has no credentials for it under 's3'"),
        ({}, "has no credentials for it under 's3'"),
    ],
)
def test_a_file_that_is_wrong(tmp_path: Path, content: Any, text: str) -> None:
    with pytest.raises(ModserveError, match=text) as caught:
        credentials_of(PLACE, write(tmp_path, content))
    assert caught.value.code is Code.INVALID_ARG
    assert "SECRET" not in caught.value.message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModserveError, match="No such file or directory"):
        credentials_of(PLACE, {"TRITON_CLOUD_CREDENTIAL_PATH": str(tmp_path / "none")})


@pytest.fixture
def no_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the machine that tests run on."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "shared"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.mark.usefixtures("no_aws")
def test_keys() -> None:
    known = {"key_id": "k", "secret_key": "s", "session_token": "t", "region": "r", "profile": "not this"}
    assert s3_access(PLACE, known) == (
        {"access_key_id": "k", "secret_access_key": "s", "session_token": "t", "region": "r"},
        None,
    )


@pytest.mark.usefixtures("no_aws")
def test_a_profile(tmp_path: Path) -> None:
    pytest.importorskip("boto3")
    (tmp_path / "shared").write_text("[team]\naws_access_key_id = k\naws_secret_access_key = s\n")
    (tmp_path / "config").write_text("[profile team]\nregion = eu-west-1\n")
    config, provider = s3_access(PLACE, {"profile": "team"})
    assert config == {"region": "eu-west-1"}
    assert provider is not None
    assert provider()["access_key_id"] == "k"
    with pytest.raises(ModserveError, match="profile 'none' of boto3 cannot be used: ProfileNotFound"):
        s3_access(PLACE, {"profile": "none"})


@pytest.mark.usefixtures("no_aws")
def test_without_anything() -> None:
    assert s3_access(PLACE, {"region": "r"}) == ({"region": "r"}, None)


@pytest.mark.usefixtures("no_aws")
def test_without_boto3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    assert s3_access(PLACE, {}) == ({}, None)
    with pytest.raises(ModserveError, match="profile 'team' needs boto3: pip install boto3"):
        s3_access(PLACE, {"profile": "team"})


@pytest.mark.parametrize("place", [PLACE, GS, AZURE], ids=str)
def test_without_obstore(monkeypatch: pytest.MonkeyPatch, place: Any) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(ModserveError, match=re.escape(pip_install("remote"))) as caught:
        open_store(place, 1)
    assert caught.value.code is Code.INVALID_ARG


def test_a_key_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "account")
    monkeypatch.setenv("AZURE_STORAGE_KEY", "not-base64-PASSWORD!")
    with pytest.raises(ModserveError, match="its client cannot be made") as caught:
        open_store(AZURE, 1)
    assert "PASSWORD" not in caught.value.message
