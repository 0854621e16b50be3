"""Callers by their keys: known, expired, revoked, replaced, and failures that wait."""

import asyncio
import math
from collections.abc import Mapping

import pytest

from modserve.access.authority import Authority
from modserve.access.certificates import CertificateRule
from modserve.access.credentials import Credentials, of_certificate, of_headers
from modserve.access.identity import Identity, Scopes
from modserve.access.key_file import AccessFile, Key, digest, new_secret
from modserve.core.errors import UnauthenticatedError
from modserve.core.tenants import Tenant

SCOPES: Scopes = {"*": frozenset({"infer", "read"})}
CLIENT = ("192.0.2.1", 1)


class Time:
    """Both clocks, and what slept."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def bearer(secret: str) -> Credentials:
    return of_headers([(b"authorization", b"Bearer " + secret.encode())])


def file_of(**keys: Key) -> AccessFile:
    return AccessFile({digest(secret): key for secret, key in keys.items()})


def key(name: str = "alice", expires: float = math.inf, revoked: bool = False) -> Key:
    return Key(Identity(name, Tenant(name), SCOPES, expires), revoked)


def authority(time: Time | None = None, keys: Mapping[str, Key] | None = None) -> Authority:
    time = time or Time()
    file = file_of(**({"msk_a": key()} if keys is None else keys))
    return Authority(file, clock=time, steady=time, sleep=time.sleep)


def test_secrets_are_new() -> None:
    assert new_secret().startswith("msk_")
    assert len(new_secret()) == 4 + 43
    assert new_secret() != new_secret()


def test_a_key_is_recognised_again_and_again() -> None:
    known = authority()
    first = known.recognise(bearer("msk_a"))
    assert first is not None
    assert first.name == "alice"
    assert known.recognise(bearer("msk_a")) is first
    assert known.recognise(bearer("msk_b")) is None
    assert known.recognise(()) is None


def test_a_key_that_expires_while_it_is_remembered() -> None:
    time = Time()
    known = authority(time, {"msk_a": key(expires=1001.0)})
    assert known.recognise(bearer("msk_a")) is not None
    time.now = 1001.0
    assert known.recognise(bearer("msk_a")) is None
    with pytest.raises(UnauthenticatedError, match="the key 'alice' expired at 1970-01-01T00:16:41Z"):
        known.resolve(bearer("msk_a"))
    time.now = 999.0  # a clock that steps back
    assert known.recognise(bearer("msk_a")) is not None


async def test_why_a_key_is_refused() -> None:
    known = authority(keys={"msk_a": key(revoked=True)})
    for secret, why in (("msk_a", "the key 'alice' was revoked"), ("msk_b", "the key is not known")):
        with pytest.raises(UnauthenticatedError, match=why) as raised:
            await known.authenticate(bearer(secret), CLIENT)
        assert raised.value.challenge == 'Bearer error="invalid_token"'


def test_a_new_file_counts_at_once() -> None:
    known = authority()
    known.recognise(bearer("msk_a"))
    known.replace(file_of(msk_b=key("bob")))
    assert known.recognise(bearer("msk_a")) is None
    bob = known.recognise(bearer("msk_b"))
    assert bob is not None
    assert bob.name == "bob"


def test_a_key_beside_the_file_stays() -> None:
    known = Authority(AccessFile({}), {digest("msk_single"): key("single")})
    known.replace(file_of(msk_b=key("bob")))
    assert known.recognise(bearer("msk_single")) is not None


async def test_failures_wait_and_valid_keys_do_not() -> None:
    time = Time()
    known = authority(time)
    for _ in range(160):
        with pytest.raises(UnauthenticatedError):
            await known.authenticate(bearer("msk_wrong"), CLIENT)
    assert len(time.slept) == 150
    assert 0.0 < time.slept[0] <= 0.05
    assert all(2.5 <= seconds <= 5.0 for seconds in time.slept[110:])
    assert len(set(time.slept)) == 150
    await known.authenticate(bearer("msk_a"), CLIENT)
    assert len(time.slept) == 150
    with pytest.raises(UnauthenticatedError):
        await known.authenticate(bearer("msk_wrong"), ("192.0.2.2", 1))
    assert len(time.slept) == 150


async def test_nobody_waits_for_a_server_that_stops() -> None:
    known = Authority(AccessFile({}))
    for _ in range(10):
        with pytest.raises(UnauthenticatedError):
            await known.authenticate(bearer("msk_wrong"), CLIENT)
    known._slow_down.on_failure = lambda address, now: 3600.0  # type: ignore[method-assign]
    waiting = [asyncio.create_task(known.authenticate(bearer("msk_wrong"), CLIENT)) for _ in range(3)]
    while len(known._pauses) < 3:  # each turn begins the tasks  # noqa: ASYNC110
        await asyncio.sleep(0)
    known.close()
    outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 30)
    assert all(isinstance(each, UnauthenticatedError) for each in outcomes)


async def test_wrong_keys_are_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    time = Time()
    known = authority(time)
    for _ in range(5):
        with pytest.raises(UnauthenticatedError):
            await known.authenticate(bearer("msk_wrong"), CLIENT)
    time.now += 60
    with pytest.raises(UnauthenticatedError):
        await known.authenticate(bearer("msk_wrong"), CLIENT)
    assert [record.getMessage() for record in caplog.records] == [
        "1 calls without a valid key were refused, the last one from 192.0.2.1",
        "5 calls without a valid key were refused, the last one from 192.0.2.1",
    ]


def test_what_it_remembers_is_bounded() -> None:
    known = authority()
    for number in range(10_000):
        known.recognise(of_headers([(b"authorization", b"Bearer" + b" " * (1 + number % 5000) + b"msk_a")]))
        known.recognise(bearer(f"msk_{number}"))
    assert len(known._known) <= 4096


def test_a_certificate() -> None:
    rule = CertificateRule("URI:spiffe://x/*", Tenant("t"), SCOPES)
    known = Authority(AccessFile({digest("msk_a"): key()}, certificates=(rule,)))
    caller = known.recognise(of_certificate(("CN=a", "URI:spiffe://x/y")))
    assert caller is not None
    assert (caller.name, caller.tenant.name, caller.origin) == ("URI:spiffe://x/y", "t", "certificate")
    with pytest.raises(UnauthenticatedError, match="the client certificate matches no rule in the"):
        known.resolve(of_certificate(("CN=a",)))


def test_no_header_stands_for_a_certificate() -> None:
    rule = CertificateRule("*", Tenant("t"), SCOPES)
    known = Authority(AccessFile({}, certificates=(rule,)))
    assert known.recognise(of_headers([(b"certificate", b"CN=a")])) is None


def test_when_keys_end() -> None:
    keys = {"msk_a": key("a", 2000.0), "msk_b": key("b"), "msk_c": key("c", 3000.0, revoked=True)}
    known = authority(keys={**keys, "msk_former": key("a", 1500.0)})
    assert known.key_ends == {"a": 2000.0}
    assert known.key_sets_read == {}
