"""Tokens: those that are good, and each way in which one is not."""

import asyncio
import base64
import hashlib
import hmac
import json
import os
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from modserve.access.authority import Authority
from modserve.access.credentials import Credentials, of_headers
from modserve.access.key_file import read
from modserve.access.tokens import LEAST_SECONDS, KeySet, KeySetError, PublicKey, load
from modserve.core.errors import ModserveError, UnauthenticatedError

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
CLIENT = ("192.0.2.1", 1)
NOW = 1_800_000_000.0


def public(kid: str, key: Any, **more: str) -> dict[str, Any]:
    algorithm = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    return {**json.loads(algorithm.to_jwk(key.public_key())), "kid": kid, "use": "sig", **more}


def save(file: Path, *keys: dict[str, Any]) -> None:
    file.write_text(json.dumps({"keys": keys}))


def claims(**more: object) -> dict[str, object]:
    """The usual ones, and `more`; None leaves one out."""
    usual = {"iss": "https://id.example", "aud": "modserve", "sub": "alice", "org": "team-a", "exp": 4_000_000_000}
    return {name: value for name, value in {**usual, **more}.items() if value is not None}


def token(key: Any = RSA, algorithm: str = "RS256", kid: str = "one", **more: object) -> str:
    text: str = jwt.encode(claims(**more), key, algorithm, headers={"kid": kid} if kid else None)
    return text


def bearer(text: str) -> Credentials:
    return of_headers([(b"authorization", b"Bearer " + text.encode())])


def section(place: object, **more: object) -> str:
    row = {
        "issuer": "https://id.example",
        "audience": "modserve",
        "jwks": str(place),
        "tenant_claim": "org",
        "scopes": {"*": ["read"]},
        "scope_claim": "scope",
        "scopes_by_value": {"run": {"team-*": ["infer"]}, "ops": {"*": ["control"]}},
    }
    return json.dumps({"jwt": [row | more], "tenants": {"team-a": {"weight": 3}}})


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "jwks.json"
    file.write_text(
        json.dumps({"keys": [public("one", RSA), public("two", EC), {"kty": "oct", "k": "eA", "kid": "h"}]})
    )
    return file


class Clocks:
    def __init__(self) -> None:
        self.now = NOW
        self.steady = 0.0


def authority(place: object, clocks: Clocks | None = None, **more: object) -> Authority:
    time = clocks or Clocks()

    async def sleep(seconds: float) -> None:
        pass

    file = read(section(place, **more), "keys.json")
    return Authority(file, clock=lambda: time.now, steady=lambda: time.steady, sleep=sleep)


async def refusal(known: Authority, text: str) -> str:
    with pytest.raises(UnauthenticatedError) as raised:
        await known.authenticate(bearer(text), CLIENT)
    assert text not in raised.value.message
    return raised.value.message


async def test_claims_say_who_calls_and_what_it_may(keys: Path) -> None:
    known = authority(keys)
    caller = await known.authenticate(bearer(token(scope="run ops x")), CLIENT)
    assert (caller.name, caller.tenant.name, caller.tenant.weight, caller.origin) == ("alice", "team-a", 3.0, "token")
    assert caller.scopes == {"*": {"read", "control"}, "team-*": {"infer"}}
    listed = await known.authenticate(bearer(token(scope=["run"])), CLIENT)
    assert listed.scopes == {"*": {"read"}, "team-*": {"infer"}}
    assert (await known.authenticate(bearer(token(EC, "ES256", "two")), CLIENT)).name == "alice"


async def test_a_token_is_verified_once(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known, text = authority(keys), token()
    assert known.recognise(bearer(text)) is None  # nobody has verified it
    caller = await known.authenticate(bearer(text), CLIENT)
    monkeypatch.setattr(jwt, "decode", None)
    assert known.recognise(bearer(text)) is caller
    assert known.recognise(of_headers([(b"x-api-key", text.encode())])) is caller


async def test_a_token_that_expires_while_it_is_remembered(keys: Path) -> None:
    clocks = Clocks()
    known, text = authority(keys, clocks), token(exp=4_000_000_000)
    await known.authenticate(bearer(text), CLIENT)
    clocks.now = 4_000_000_029.0
    assert known.recognise(bearer(text)) is not None  # within the clocks' difference
    clocks.now = 4_000_000_030.0
    assert known.recognise(bearer(text)) is None
    assert await refusal(known, text) == "the token has expired"


def unsigned(header: Mapping[str, object], body: Mapping[str, object], key: bytes = b"") -> str:
    """A token whose header says what it likes."""
    parts = [base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=") for each in (header, body)]
    data = b".".join(parts)
    signature = base64.urlsafe_b64encode(hmac.digest(key, data, hashlib.sha256)).rstrip(b"=") if key else b""
    return (data + b"." + signature).decode()


PEM = RSA.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (token(exp=1_000_000_000), "the token is not valid: Signature has expired"),
        (token(nbf=4_000_000_000), "the token is not valid: The token is not yet valid"),
        (token(aud="other"), "the token is not valid: Audience doesn't match"),
        (token(iss="https://other"), "the token's issuer is 'https://other', which this server does not know"),
        (token(iss=None), "the token's issuer is missing"),
        (token(org=None), "the token's claim 'org' does not name a tenant"),
        (token(org="caf\udce9"), "the token's claim 'org' does not name a tenant"),
        (token(org="x" * 101), "the token's claim 'org' does not name a tenant"),
        (token(OTHER), "the token is not valid: Signature verification failed"),
        (token(OTHER, kid="three"), "the token's key is 'three', which its issuer does not have"),
        (token(kid=""), "the token's key is '', which its issuer does not have"),
        (token(kid="two"), "the token is not valid: "),
        (unsigned({"alg": "none", "kid": "one"}, claims()), "the token's algorithm is 'none', expected one of RS256"),
        (unsigned({"alg": "HS256", "kid": "one"}, claims(), PEM), "the token's algorithm is 'HS256', expected one of"),
        (unsigned({"alg": "RS256", "kid": "one"}, claims(), PEM), "the token is not valid: Signature verification"),
        (unsigned({"alg": "RS256", "kid": "h"}, claims(), b"x"), "the token's key is 'h', which its issuer"),
        ("a.b.c", "the key is neither known nor a token"),
        (f"{'A' * 5000}.{'B' * 5000}.{'C' * 5000}", "the key is neither known nor a token"),
        (f"{token()}{'x' * 1_000_000}", "the call's key has 1000"),
    ],
    ids=range(19),
)
async def test_a_token_that_is_refused(keys: Path, text: str, complaint: str) -> None:
    known = authority(keys)
    assert (await refusal(known, text)).startswith(complaint)
    assert known.recognise(bearer(text)) is None


async def test_a_token_needs_an_end(keys: Path) -> None:
    assert await refusal(authority(keys), token(exp=None)) == 'the token is not valid: Token is missing the "exp" claim'


async def test_a_key_is_for_its_algorithm_only(tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    save(file, public("one", RSA, alg="RS512"))
    known = authority(file)
    assert await refusal(known, token()) == "the token's algorithm is RS256, its key is for RS512"
    assert (await known.authenticate(bearer(token(algorithm="RS512")), CLIENT)).name == "alice"


async def test_an_issuer_may_take_fewer_algorithms(keys: Path) -> None:
    known = authority(keys, algorithms=["ES256"])
    assert await refusal(known, token()) == "the token's algorithm is 'RS256', expected one of ES256"


async def test_keys_change_places(keys: Path) -> None:
    """A token with a new key has the keys read again, but not before some time is over."""
    clocks = Clocks()
    known = authority(keys, clocks)
    await known.authenticate(bearer(token()), CLIENT)
    save(keys, public("three", OTHER))
    text = token(OTHER, kid="three")
    assert await refusal(known, text) == "the token's key is 'three', which its issuer does not have"
    clocks.steady += LEAST_SECONDS
    assert (await known.authenticate(bearer(text), CLIENT)).name == "alice"


async def test_any_number_of_unknown_keys_is_one_reading() -> None:
    readings, steady = [0], [0.0]

    def count(place: str) -> dict[str, PublicKey]:
        readings[0] += 1
        return {"one": PublicKey(None, "")}

    keys = KeySet("place", 300.0, lambda: steady[0], count)
    found = await asyncio.gather(*(keys.key(f"unknown{number}") for number in range(1000)))
    assert (set(found), readings) == ({None}, [1])
    steady[0] = LEAST_SECONDS
    await asyncio.gather(*(keys.key(f"unknown{number}") for number in range(1000)))
    assert readings == [2]


async def test_keys_stay_while_their_place_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    steady, failing = [0.0], [False]

    def load_or_fail(place: str) -> dict[str, PublicKey]:
        if failing[0]:
            raise KeySetError("no route")
        return {"one": PublicKey("key", "")}

    keys = KeySet("https://id.example/jwks", 300.0, lambda: steady[0], load_or_fail)
    assert await keys.key("one") == PublicKey("key", "")
    failing[0], read_s = True, keys.read_s
    for _ in range(3):
        steady[0] += 300.0
        assert await keys.key("two") is None
        assert await keys.key("one") == PublicKey("key", "")
    assert keys.read_s == read_s > 0
    assert [record.getMessage() for record in caplog.records] == [
        "cannot read the keys of tokens at https://id.example/jwks, the previous ones stay: no route"
    ]


async def test_keys_outlive_a_change_of_the_file(keys: Path) -> None:
    known = authority(keys)
    await known.authenticate(bearer(token()), CLIENT)
    os.unlink(keys)
    known.replace(read(section(keys), "keys.json"))
    assert (await known.authenticate(bearer(token()), CLIENT)).name == "alice"


async def test_keys_at_an_address(keys: Path) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = keys.read_bytes() if self.path == "/jwks.json" else b""
            self.send_response(200 if body else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = f"http://127.0.0.1:{server.server_address[1]}"
        assert (await authority(f"{place}/jwks.json").authenticate(bearer(token()), CLIENT)).name == "alice"
        assert "which its issuer does not have" in await refusal(authority(f"{place}/other"), token())
        server.shutdown()


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"keys": 1}', '{"keys": []}', '{"keys": [{"kty": "oct", "k": "eA"}]}']
)
def test_what_is_no_set_of_keys(tmp_path: Path, text: str) -> None:
    file = tmp_path / "jwks.json"
    file.write_text(text)
    with pytest.raises(KeySetError):
        load(str(file))


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({"algorithms": ["HS256"]}, "jwt[0]: 'algorithms' is ['HS256'], expected some of RS256"),
        ({"algorithms": ["none"]}, "jwt[0]: 'algorithms' is ['none']"),
        ({"leeway_seconds": -1}, "jwt[0]: 'leeway_seconds' is -1, expected a number from 0 on"),
        ({"audience": ""}, "jwt[0]: 'audience' is '', expected a text"),
        ({"scopes_by_value": []}, ""),
        ({"scopes_by_value": {"a": {"*": ["x"]}}}, "jwt[0], 'a', scope of '*': there is no kind of call 'x'"),
        ({"secret": "x"}, "jwt[0]: there is no 'secret'"),
    ],
)
def test_what_is_wrong_with_an_issuer(more: dict[str, object], complaint: str) -> None:
    if not complaint:
        read(section("x", **more), "f")
        return
    with pytest.raises(ModserveError) as raised:
        read(section("x", **more), "f")
    assert complaint in raised.value.message
