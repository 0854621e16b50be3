"""Whose address the logs have, behind proxies and in front of made-up headers."""

import pytest

from modserve.core.requests.origin import CHAINS, Origin, Proxies, lines_of, network_of

PROXIES = Proxies([network_of("10.0.0.0/8"), network_of("fd00::/8"), network_of("192.0.2.9")])
NEAR = ("10.0.0.7", 51234)


@pytest.mark.parametrize(
    ("lines", "client"),
    [
        ([], NEAR),
        ([("x-forwarded-for", "203.0.113.5")], "203.0.113.5"),
        ([("x-forwarded-for", "203.0.113.5:4711")], "203.0.113.5"),
        ([("x-forwarded-for", "2001:db8::1")], "2001:db8::1"),
        ([("x-forwarded-for", "[2001:db8::1]:4711")], "2001:db8::1"),
        ([("x-forwarded-for", "1.1.1.1, 203.0.113.5, 10.1.1.1, fd00::2")], "203.0.113.5"),
        ([("x-forwarded-for", "1.1.1.1"), ("x-forwarded-for", "203.0.113.5,192.0.2.9")], "203.0.113.5"),
        ([("x-forwarded-for", "10.1.1.1, 10.1.1.2")], "10.1.1.1"),
        ([("x-forwarded-for", "203.0.113.5, unknown")], NEAR),
        ([("x-forwarded-for", "evil\n, 10.1.1.2")], "10.1.1.2"),
        ([("x-forwarded-for", "")], NEAR),
        ([("forwarded", 'for=203.0.113.5;proto=http, For="[2001:db8::1]:47";by=10.1.1.1')], "2001:db8::1"),
        ([("forwarded", "for=203.0.113.5, proto=http")], NEAR),
        ([("forwarded", "for=1.1.1.1"), ("x-forwarded-for", "203.0.113.5")], "203.0.113.5"),
    ],
)
def test_a_client_behind_trusted_proxies(lines: list[tuple[str, str]], client: object) -> None:
    origin = Origin(NEAR, lines_of((name.encode(), value.encode()) for name, value in lines))
    assert PROXIES.client(origin) == client
    assert Proxies().client(origin) == NEAR


@pytest.mark.parametrize("peer", [("203.0.113.1", 5), ("2001:db8::9", 5, 0, 0), "unix", None])
def test_nobody_else_is_believed(peer: object) -> None:
    assert PROXIES.client(Origin(peer, ((b"x-forwarded-for", b"198.51.100.1"),))) == peer


def test_an_ipv4_proxy_at_a_port_of_both_families() -> None:
    peer = ("::ffff:10.0.0.7", 5, 0, 0)
    assert PROXIES.client(Origin(peer, ((b"x-forwarded-for", b"198.51.100.1"),))) == "198.51.100.1"


def test_only_lines_that_matter_are_kept_and_none_is_long() -> None:
    head = [(b"user-agent", b"a" * 9000), (b"cookie", b"c"), (b"x-forwarded-for", b"1.1.1.1," * 999 + b"198.51.100.1")]
    lines = lines_of(head)
    assert [(name, len(value)) for name, value in lines] == [(b"user-agent", 1024), (b"x-forwarded-for", 1024)]
    assert PROXIES.client(Origin(NEAR, lines)) == "198.51.100.1"
    assert [name for name, _ in lines_of(head, CHAINS)] == [b"x-forwarded-for"]


@pytest.mark.parametrize("text", ["10.0.0.1/8", "proxy", "", "10.0.0.0/33"])
def test_what_is_no_network(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no address and no network .*; expected one like 10\.0\.0\.5 or 10\.0\.0"):
        network_of(text)
