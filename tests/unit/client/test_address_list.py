"""The servers that ``--url`` names."""

import socket
from collections.abc import Sequence

import pytest

from modserve.client.address_list import addresses, changes, lookup
from modserve.client.errors import ClientError
from modserve.core.errors import Code


def resolve(name: str, port: int) -> Sequence[str]:
    """As in a cluster: a service with three servers, one without any, and a resolver that is down."""
    if name == "down":
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    return {"svc": ["10.0.0.2", "10.0.0.1", "10.0.0.2"], "six": ["::1", "fd00::2"], "none": []}[name]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h", ["http://h:8000"]),
        ("a:1,b:2, c", ["http://a:1", "http://b:2", "http://c:8000"]),
        ("http://a:1,https://b,grpc://[::1]", ["http://a:1", "https://b:443", "grpc://[::1]:8001"]),
        ("a:1,http://a:1/,a:1", ["http://a:1"]),
        ("dns:///svc:9000", ["http://10.0.0.1:9000", "http://10.0.0.2:9000"]),
        ("DNS+HTTPS:///svc/prefix", ["https://10.0.0.1:443/prefix", "https://10.0.0.2:443/prefix"]),
        ("dns+grpc:///six", ["grpc://[::1]:8001", "grpc://[fd00::2]:8001"]),
        ("dns:///svc,z", ["http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://z:8000"]),
    ],
)
def test_lists(text: str, expected: Sequence[str]) -> None:
    assert list(map(str, addresses(text, resolve))) == expected


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("a,,b", Code.INVALID_ARG, "'a,,b' has a comma without an address beside it; expected http://HOST:PORT"),
        ("a,", Code.INVALID_ARG, "has a comma without an address"),
        ("", Code.INVALID_ARG, "has a comma without an address"),
        ("dns://svc:8000", Code.INVALID_ARG, "needs a third slash; expected, for example, dns:///svc:8000"),
        ("dns:///", Code.INVALID_ARG, "is not the address of a server"),
        ("dns:///svc:port", Code.INVALID_ARG, "is not an address"),
        ("dns:///a..b", Code.INVALID_ARG, "is not an address"),
        (
            "grpc://unix:s",
            Code.INVALID_ARG,
            "'unix:s' is that of a Unix socket, which is for HTTP; grpc needs HOST:PORT",
        ),
        ("a,ftp://b", Code.INVALID_ARG, "'ftp://b' is not the address of a server"),
        ("dns:///none", Code.UNAVAILABLE, "the name 'none' has no address"),
        ("a,dns:///down", Code.UNAVAILABLE, "the name 'down' has no address: Temporary failure in name resolution"),
    ],
)
def test_what_is_no_list(text: str, code: Code, message: str) -> None:
    with pytest.raises(ClientError) as raised:
        addresses(text, resolve)
    assert raised.value.code is code
    assert message in raised.value.message


def test_servers_of_a_name_are_called_by_it() -> None:
    """Certificates and virtual hosts have the name, not the address."""
    first = addresses("dns+https:///svc:8443", resolve)[0]
    assert (first.host, first.host_name, first.virtual_host) == ("10.0.0.1", "svc", "svc:8443")
    assert first.at_port(8002, "http").host_name == "svc"
    [plain] = addresses("https://[::1]")
    assert (plain.host_name, plain.virtual_host) == ("::1", "[::1]:443")


def test_one_family_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server with an IPv4 and an IPv6 address is one."""
    rows = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::1", 80, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 80)),
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::2", 80, 0, 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *words, **named: rows)
    assert lookup("svc", 80) == ["fd00::1", "fd00::2"]


def test_the_systems_resolver() -> None:
    assert lookup("127.0.0.1", 1) == ["127.0.0.1"]
    assert lookup("::1", 1) == ["::1"]


def test_which_lists_change() -> None:
    assert changes("a,dns:///b")
    assert not changes("a,grpc://b")
