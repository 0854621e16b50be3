"""Where a server is: addresses, headers, and the options that say so."""

from pathlib import Path

import pytest

from modserve.commands import syntax
from modserve.commands.destination import (
    Destination,
    address,
    addresses,
    destination,
    destinations,
    headers,
    openai_destination,
)
from modserve.commands.errors import UnreachableError
from modserve.commands.infer.command import over_grpc
from modserve.core.errors import ModserveError


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("h", "http://h:8000"),
        ("h:1", "http://h:1"),
        ("http://h:1/a/", "http://h:1/a"),
        ("https://h", "https://h:443"),
        ("grpc://[::1]", "grpc://[::1]:8001"),
        ("grpcs://h", "grpcs://h:8001"),
    ],
)
def test_addresses(url: str, text: str) -> None:
    assert str(address(url)) == text


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host:port", "grpc://[", "http://host:99999"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ModserveError, match=r"is not (an|the) address"):
        address(url)


def test_headers(tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text("a: b:c\n\n d : e \n")
    assert headers(["x: y", f"@{file}"]) == {"x": "y", "a": "b:c", "d": "e"}


@pytest.mark.parametrize("text", ["x", ": y", "a: b\nc: d", "@nosuch"])
def test_headers_that_are_none(text: str) -> None:
    with pytest.raises(ModserveError, match="option '--header': "):
        headers([text])


def test_options() -> None:
    made = syntax.parser("try", "Tries it.")
    syntax.add_destination(made, 7)
    words = ["--url=https://h", "--header=a: b", "--ca-file=c", "--cert=d", "--key=e", "--insecure"]
    own = destination(made.read(words))
    access = own.access
    assert (access.headers, access.root_cert, access.client_cert) == ({"a": "b"}, Path("c"), Path("d"))
    assert (access.client_key, access.insecure, own.seconds) == (Path("e"), True, 7)
    assert destination(made.read(["--url=h"])) == Destination(address("h"), seconds=7)


def test_several_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    made = syntax.parser("try", "Tries it.")
    syntax.add_destination(made, 7, several=True)
    monkeypatch.setenv("MODSERVE_API_KEY", "k")
    options = made.read(["--url=a:1,https://b"])
    own = destinations(options)
    assert [str(each.address) for each in own] == ["http://a:1", "https://b:443"]
    assert [each.access.headers for each in own] == [{"Authorization": "Bearer k"}] * 2
    for read in (destination, openai_destination):
        with pytest.raises(
            syntax.UsageError, match="this command is for one server, and '--url' or MODSERVE_URL names 2"
        ):
            read(options)
    with pytest.raises(syntax.UsageError, match="this address is for one server"):
        address("a,b")


def test_a_name_without_servers() -> None:
    with pytest.raises(UnreachableError, match="the name 'svc' has no address") as raised:
        addresses("dns:///svc", lambda name, port: [])
    assert raised.value.advice == "--url or MODSERVE_URL names another one"


@pytest.mark.parametrize(
    ("url", "other"),
    [
        ("http://host:8080", "grpc://host:8001"),
        ("https://[::1]/a", "grpcs://[::1]:8001"),
        ("grpc://host:9", "grpc://host:9"),
    ],
)
def test_the_port_of_grpc(url: str, other: str) -> None:
    assert str(over_grpc(Destination(address(url))).address) == other
