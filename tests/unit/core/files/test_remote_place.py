"""Places of remote repositories, as people write them."""

from pathlib import Path

import pytest

from modserve.core.files.remote_place import RemotePath, RemotePlace, parse_place, without_secrets


def parsed(text: str) -> RemotePlace:
    place = parse_place(text)
    assert place is not None
    return place


@pytest.mark.parametrize(
    ("text", "bucket", "prefix", "endpoint", "shown"),
    [
        ("s3://b", "b", "", "", "s3://b"),
        ("s3://b/", "b", "", "", "s3://b"),
        ("S3://my.bucket-1/a//b/", "my.bucket-1", "a/b", "", "s3://my.bucket-1/a/b"),
        ("s3://b/models v2", "b", "models v2", "", "s3://b/models v2"),
        ("s3://localhost:9000/b/p", "b", "p", "http://localhost:9000", "s3://localhost:9000/b/p"),
        ("s3://http://localhost:9000/b/p", "b", "p", "http://localhost:9000", "s3://localhost:9000/b/p"),
        ("s3://https://minio.org:9000//b/p/", "b", "p", "https://minio.org:9000", "s3://https://minio.org:9000/b/p"),
        ("s3://https://minio.org/b", "b", "", "https://minio.org", "s3://https://minio.org/b"),
        ("s3://[::1]:9000/b/p", "b", "p", "http://[::1]:9000", "s3://[::1]:9000/b/p"),
        ("gs://b/p/q", "b", "p/q", "", "gs://b/p/q"),
    ],
)
def test_buckets(text: str, bucket: str, prefix: str, endpoint: str, shown: str) -> None:
    place = parsed(text)
    assert (place.bucket, place.prefix, place.endpoint, str(place)) == (bucket, prefix, endpoint, shown)
    assert parsed(str(place)) == place


@pytest.mark.parametrize("account", ["acc", "acc.blob.core.windows.net"])
def test_azure(account: str) -> None:
    place = parsed(f"as://{account}/container/a/b")
    assert (place.account, place.bucket, place.prefix) == ("acc", "container", "a/b")


@pytest.mark.parametrize("end", [".tar.gz", ".tgz", ".tar", ".zip", ".ZIP"])
def test_archives(end: str) -> None:
    place = parsed(f"https://me:pass%40@Host:81/a%20b/models{end}?sig=abc#x")
    assert str(place) == f"https://Host:81/a%20b/models{end}"
    assert place.url == f"https://host:81/a%20b/models{end}?sig=abc"
    assert place.login == ("me", "pass@")
    assert "pass" not in repr(place)
    assert "abc" not in repr(place)


@pytest.mark.parametrize("path", ["models", "/models", "./s3", "a:b", "C:/models", "s3"])
def test_what_is_on_this_machine(path: str) -> None:
    assert parse_place(path) is None


@pytest.mark.parametrize(
    "text",
    [
        "s3://",
        "s3:///",
        "s3:/b/p",
        "s3://b/../c",
        "s3://b/a\\b",
        "s3://-b",
        "s3://host:99999/b",
        "s3://host:port/b",
        "s3://host:1",
        "gs://",
        "as://account",
        "as://account/",
        "az://c/p",
        "ftp://a/b",
        "http://",
        "http:///x.zip",
        "https://host/models",
        "https://host:x/models.zip",
        "https://host/x.rar",
    ],
)
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(ValueError, match=r"got: |lead nowhere"):
        parse_place(text)


@pytest.mark.parametrize(
    "text",
    [
        "s3://KEY:PASSWORD@bucket/p",
        "s3://https://KEY:PASSWORD@host:9000/bucket",
        "gs://bucket/p?key=PASSWORD",
        "as://acc/cont?sig=PASSWORD",
        "https://u:PASSWORD@host/models",
        "hf://u:PASSWORD@host/models",
        "s3:/KEY:PASSWORD@bucket",
    ],
)
def test_secrets_are_in_no_message(text: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_place(text)
    assert "PASSWORD" not in str(caught.value)
    assert "PASSWORD" not in without_secrets(text)


def test_a_path_for_reports() -> None:
    path = RemotePath("s3://bucket/models") / "m" / "config.pbtxt"
    assert isinstance(path, Path)
    assert str(path) == "s3://bucket/models/m/config.pbtxt"
    assert f"{path.parent}" == "s3://bucket/models/m"
    assert not path.exists()
    assert str(RemotePath("https://host/a.zip/m")) == "https://host/a.zip/m"
    assert str(RemotePath("s3://h:1/b") / "m") == "s3://h:1/b/m"
    assert path == RemotePath("s3://bucket/models/m/config.pbtxt")
    assert str(RemotePath("s3://https://host:1/b/m")) == "s3://https://host:1/b/m"
