"""Whose address the logs have, behind proxies and in front of made-up headers."""

import ipaddress

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

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


TRUSTED = st.sampled_from(("10.0.0.7", "10.255.1.2", "fd00::2", "192.0.2.9"))
STRANGERS = st.sampled_from(("203.0.113.5", "2001:db8::1", "192.0.2.8"))
MADE_UP = st.lists(
    st.one_of(TRUSTED, STRANGERS, st.sampled_from(("unknown", "", "for=10.0.0.7", "[", "1.1.1.1," * 300))), max_size=4
)
NAMES = {True: b"forwarded", False: b"x-forwarded-for"}


class Journey(RuleBasedStateMachine):
    """A request on its way from a client that makes up headers, through proxies of which each adds whom it is from.

    Whatever the client and proxies of strangers wrote, its address is that of the last stranger.
    """

    @initialize(client=STRANGERS, made_up=MADE_UP, standard=st.booleans())
    def begins(self, client: str, made_up: list[str], standard: bool) -> None:
        self.standard = standard
        """Proxies write Forwarded, and drop the other header."""
        self.lines = [(NAMES[standard], text.encode()) for text in made_up]
        if not standard:
            self.lines += [(NAMES[True], b"for=10.0.0.7")]
        self.last = self.stranger = client

    @rule(proxy=TRUSTED, with_port=st.booleans(), joined=st.booleans())
    def passes_a_proxy(self, proxy: str, with_port: bool, joined: bool) -> None:
        self._pass(proxy, with_port, joined)

    @rule(proxy=STRANGERS, with_port=st.booleans(), joined=st.booleans())
    def passes_a_proxy_of_strangers(self, proxy: str, with_port: bool, joined: bool) -> None:
        self._pass(proxy, with_port, joined)
        self.stranger = proxy

    def _pass(self, proxy: str, with_port: bool, joined: bool) -> None:
        hop = f"[{self.last}]" if ":" in self.last and (with_port or self.standard) else self.last
        hop += ":4711" if with_port else ""
        element = f'for="{hop}";proto=http' if self.standard else hop
        own = [index for index, (name, _) in enumerate(self.lines) if name == NAMES[self.standard]]
        if joined and own:
            name, value = self.lines[own[-1]]
            self.lines[own[-1]] = name, b"%b, %b" % (value, element.encode())
        else:
            self.lines.append((NAMES[self.standard], element.encode()))
        self.last = proxy

    @invariant()
    def is_from_the_last_stranger(self) -> None:
        client = PROXIES.client(Origin((self.last, 51234), lines_of(self.lines)))
        host = client[0] if isinstance(client, tuple) else client
        assert ipaddress.ip_address(str(host)) == ipaddress.ip_address(self.stranger)


def test_no_header_that_a_client_makes_up_hides_its_address() -> None:
    few = settings(max_examples=150, stateful_step_count=6, deadline=None, derandomize=True, database=None)
    run_state_machine_as_test(Journey, settings=few)
