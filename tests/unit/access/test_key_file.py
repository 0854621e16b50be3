"""The file of keys: what it says, and what is wrong with it."""

import json
import math
from datetime import UTC, datetime

import pytest

from modserve.access.key_file import digest, read
from modserve.core.errors import ModserveError
from modserve.core.tenants import Tenant

ALICE, BOB = digest("msk_alice"), digest("msk_bob")
GOOD = f"""
keys:
  - name: alice
    sha256: {ALICE}
    tenant: team-a
    scopes: {{"resnet*": [infer, read], "*": [read]}}
    expires: 2030-01-31T12:00:00Z
    previous: {{sha256: '{"0" * 64}', expires: 2029-01-01}}
  - {{name: bob, sha256: {BOB}, scopes: {{"*": [admin]}}, revoked: true}}
tenants:
  team-a: {{weight: 2, requests_per_second: 5.5, concurrency: 3}}
certificates:
  - {{match: "CN=node-*", tenant: nodes, scopes: {{"*": [infer]}}}}
"""


def test_what_a_file_says() -> None:
    file = read(GOOD, "keys.yaml")
    alice, bob = file.keys[ALICE].identity, file.keys[BOB]
    assert alice.tenant == Tenant("team-a", weight=2.0, requests_per_second=5.5, concurrency=3)
    assert alice.expires == datetime(2030, 1, 31, 12, tzinfo=UTC).timestamp()
    assert alice.scopes == {"resnet*": {"infer", "read"}, "*": {"read"}}
    assert file.keys["0" * 64].identity.expires == datetime(2029, 1, 1, tzinfo=UTC).timestamp()
    assert (bob.revoked, bob.identity.expires, bob.identity.tenant) == (True, math.inf, Tenant("bob"))
    assert [rule.pattern for rule in file.certificates] == ["CN=node-*"]


def test_json_is_read_as_well() -> None:
    file = read(f'{{"keys": [{{"name": "a", "sha256": "{ALICE}", "scopes": {{"*": ["read"]}}}}]}}', "keys.json")
    assert list(file.keys) == [ALICE]


def key(**more: object) -> str:
    fields = {"name": "a", "sha256": ALICE, "scopes": {"*": ["read"]}} | more
    return json.dumps({"keys": [fields]})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "the file is empty, expected 'keys:' with a list"),
        ("- a", "expected a mapping with 'keys', got list"),
        ("keys: [\n", "not YAML in line 2: "),
        ('{"keys": ', "not JSON: "),
        ("kees: []", "the file: there is no 'kees', expected some of certificates, jwt, keys, tenants"),
        ("keys: {}", "'keys': expected a list, got dict"),
        ("keys: [1]", "keys[0]: expected a mapping, got int"),
        (key(name="a b"), "keys[0]: 'a b' cannot be a name, expected 1 to 100 characters without spaces"),
        (key(name="a\ud800"), "keys[0]: 'a\\ud800' cannot be a name"),
        (key(name=""), "keys[0]: '' cannot be a name"),
        (key(name=None), "keys[0]: None cannot be a name"),
        (key(secret="x"), "keys[0]: there is no 'secret', expected some of"),
        (key(sha256="ABC"), "key 'a': 'sha256' is not a SHA-256: expected 64 digits"),
        (key(scopes={}), "key 'a': 'scopes' is {}, expected kinds of calls by models' names"),
        (key(scopes={"*": "read"}), "the scope of '*' is 'read', expected a list such as [infer, read]"),
        (key(scopes={"*": ["reed"]}), "there is no kind of call 'reed', expected some of infer, read, control, admin"),
        (key(expires="soon"), "key 'a': 'expires' is 'soon', expected a time such as 2030-01-31T12:00:00Z"),
        (key(expires=7), "'expires' is 7, expected a time"),
        (key(revoked="yes"), "key 'a': 'revoked' is 'yes', expected true or false"),
        (key(previous={"sha256": ALICE}), "key 'a': key 'a' has the same secret"),
        (f"keys: [{key()[10:-2]}, {key(sha256=BOB)[10:-2]}]", "key 'a': there are two keys of this name"),
        ("tenants: []\nkeys: []", ""),
        ("tenants: {a: {weight: fast}}", "tenants.a: 'weight' is 'fast', expected a number"),
        ("tenants: {a: {weight: 0}}", "the weight of tenant 'a' is 0.0, expected a number from"),
        ("tenants: {a: {concurrency: 1.5}}", "tenants.a: 'concurrency' is 1.5, expected a whole number"),
        ("tenants: {a: {speed: 1}}", "tenants.a: there is no 'speed'"),
        ("certificates: [{match: x}]", "certificates[0], tenant: None cannot be a name"),
    ],
)
def test_what_is_wrong_with_a_file(text: str, complaint: str) -> None:
    if not complaint:
        assert not read(text, "f").keys  # an empty list is nothing
        return
    with pytest.raises(ModserveError) as raised:
        read(text, "keys.yaml")
    assert raised.value.message.startswith("keys.yaml: ")
    assert complaint in raised.value.message
