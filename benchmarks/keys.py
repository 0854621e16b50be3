"""What keys cost: microseconds of CPU a request by the number of keys, a token seen before, and whether time tells.

    python benchmarks/keys.py                # with PyJWT for the row of tokens: pip install 'modserve[auth]'
    python benchmarks/keys.py --tries 100000

No server runs: each row calls what the front ends call for every inference, in turns within one run. The last table has
the time to refuse secrets that differ from the right one in their first or in their last character only.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from datetime import date

from modserve.access.authority import Authority
from modserve.access.credentials import Credentials, of_headers
from modserve.access.identity import KINDS, Identity, Scopes
from modserve.access.key_file import AccessFile, Key
from modserve.access.secret import digest, new_secret
from modserve.core.errors import UnauthenticatedError
from modserve.core.tenants import Tenant
from modserve.form import form

_CALLS = 2_000
_ROUNDS = 25
_SCOPES: Scopes = {"resnet*": frozenset(KINDS), "*": frozenset({"read"})}


def bearer(secret: str) -> Credentials:
    return of_headers([(b"authorization", f"Bearer {secret}".encode())])


def authority(secrets: list[str]) -> Authority:
    tenant = Tenant("t")
    keys = {digest(each): Key(Identity(f"k{n}", tenant, _SCOPES)) for n, each in enumerate(secrets)}
    return Authority(AccessFile(keys))


def admitted(known: Authority, shown: Credentials) -> Callable[[], bool]:
    """What a front end does for an inference of a caller that it has seen."""

    def admit() -> bool:
        identity = known.recognise(shown)
        return identity is not None and identity.allows("infer", "resnet50")

    return admit


def looked_up(known: Authority, secrets: list[str]) -> Callable[[], bool]:
    """The same for a caller that it has not: each call shows the next key."""
    shown, at = [bearer(each) for each in secrets], [0]

    def admit() -> bool:
        at[0] = (at[0] + 1) % len(shown)
        identity = known.resolve(shown[at[0]])
        return identity.allows("infer", "resnet50")

    return admit


def token_seen_before() -> tuple[str, Callable[[], bool]]:
    """A caller with a token that was verified: Authority remembers who showed these headers."""
    known = authority([])
    shown = bearer("eyJhbGciOiJSUzI1NiIsImtpZCI6Im9uZSJ9." + "c" * 400 + "." + "s" * 342)
    known._known[shown] = Identity("alice", Tenant("t"), _SCOPES, time.time() + 3600, "token")
    return "a token of 800 bytes, seen before", admitted(known, shown)


def microseconds(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Medians of each, which take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            begun = time.process_time_ns()
            for _ in range(_CALLS):
                call()
            times[name].append((time.process_time_ns() - begun) / 1e3 / _CALLS)
    return {name: statistics.median(each) for name, each in times.items()}


def refusals(tries: int) -> dict[str, tuple[float, float]]:
    """Median and p99 in nanoseconds to refuse a secret, by where it differs from a right one, in turns."""
    secret = new_secret()
    known = authority([secret, *(new_secret() for _ in range(9_999))])
    wrong = {
        "the first character": "M" + secret[1:],
        "a character in the middle": secret[:24] + ("a" if secret[24] != "a" else "b") + secret[25:],
        "the last character": secret[:-1] + ("a" if secret[-1] != "a" else "b"),
    }
    shown = {name: bearer(each) for name, each in wrong.items()}
    times: dict[str, list[int]] = {name: [] for name in wrong}
    for _ in range(tries):
        for name, each in shown.items():
            begun = time.perf_counter_ns()
            try:
                known.resolve(each)
            except UnauthenticatedError:
                times[name].append(time.perf_counter_ns() - begun)
    return {name: (statistics.median(each), statistics.quantiles(each, n=100)[98]) for name, each in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=100_000, help="refusals of each kind")
    tries = parser.parse_args().tries
    print(f"{date.today()}, Python {platform.python_version()}, {form()}\n")
    calls: dict[str, Callable[[], object]] = {}
    for count in (1, 100, 10_000):
        secrets = [new_secret() for _ in range(count)]
        known = authority(secrets)
        calls[f"{count} keys, headers seen before"] = admitted(known, bearer(secrets[-1]))
        calls[f"{count} keys, looked up by the secret"] = looked_up(known, secrets)
    name, call = token_seen_before()
    calls[name] = call
    for row, cost in microseconds(calls).items():
        print(f"{row:45} {cost:6.2f} µs")
    print(f"\nrefused, {tries} tries each; the secret differs in" + " " * 8 + "median      p99")
    for row, (median, p99) in refusals(tries).items():
        print(f"  {row:45} {median:7.0f} ns {p99:7.0f} ns")


if __name__ == "__main__":
    main()
