"""What keys cost: microseconds of CPU a request by the number of keys, a token seen before, and whether time tells.

    python benchmarks/keys.py                # with PyJWT for the row of tokens: pip install '.[auth]'
    python benchmarks/keys.py --tries 100000
    python benchmarks/keys.py --flood        # a server, and wrong keys from 1,000 connections beside a healthy client
    python benchmarks/keys.py --rate 10000   # the same with so many wrong keys a second, whatever the server answers

Without --flood no server runs: each row calls what the front ends call for every inference, in turns within one run.
The last table has the time to refuse secrets that differ from the right one in their first or in their last character.
The flood needs wrk (Debian: wrk). Windows without and with wrong keys take turns. Each of the two takes a minute.
"""

import argparse
import http.client
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from datetime import date
from pathlib import Path

from modserve.access.authority import Authority
from modserve.access.credentials import Credentials, of_headers
from modserve.access.identity import KINDS, Identity, Scopes
from modserve.access.key_file import AccessFile, Key, digest, new_secret
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


def flood(rate: float, windows: int = 5, seconds: float = 4.0) -> None:
    """Latency of a client with a key, in windows without and with wrong keys from its own address.

    `rate`: so many a second; 0: as fast as they are answered on 1,000 connections.
    """
    key = new_secret()
    latencies: dict[str, list[float]] = {"quiet": [], "flood": []}
    ratios, reports = [], []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "keys.json"
        rows = [{"name": "healthy", "sha256": digest(key), "scopes": {"*": ["infer", "read"]}}]
        file.write_text(json.dumps({"keys": rows}))
        options = ["--example", "--http-port=0", "--allow-grpc=false", "--allow-metrics=false", f"--auth-file={file}"]
        command = [sys.executable, "-m", "modserve", "serve", *options, "--access-log=off"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
            assert server.stdout is not None
            port = next(int(line.rpartition(":")[2]) for line in server.stdout if line.startswith("HTTP listening"))
            next(line for line in server.stdout if "Try it" in line)
            for _ in range(windows):
                quiet = window(port, key, seconds)
                with subprocess.Popen(attack(port, rate, seconds + 2), stdout=subprocess.PIPE, text=True) as attacker:
                    time.sleep(1)  # until its connections are there
                    beside = window(port, key, seconds)
                    reports.append(attacker.communicate()[0])
                latencies["quiet"] += quiet
                latencies["flood"] += beside
                ratios.append(p99(beside) / p99(quiet))
            server.terminate()
    for name, each in latencies.items():
        print(
            f"{name}: {len(each)} requests, median {statistics.median(each) * 1e3:.2f} ms, p99 {p99(each) * 1e3:.2f} ms"
        )
    shown = ", ".join(f"{each:.2f}" for each in ratios)
    print(f"p99 beside wrong keys over p99 before, by window: {shown}; median {statistics.median(ratios):.2f}")
    print("wrong keys:", *(line.strip() for text in reports for line in text.splitlines() if "sec" in line), sep="\n  ")


def attack(port: int, rate: float, seconds: float) -> list[str]:
    """The command that sends wrong keys."""
    if rate:
        script = Path(__file__).with_name("wrong_keys.py")
        return [sys.executable, str(script), str(port), str(rate), str(seconds)]
    url = f"http://127.0.0.1:{port}/v2"
    return ["wrk", "-t1", "-c1000", f"-d{seconds:.0f}s", "-H", "x-api-key: msk_wrong", url]


def p99(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100)[98]


def window(port: int, key: str, seconds: float) -> list[float]:
    """Seconds that each inference took, one after the other on one connection."""
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        inputs = [{"name": f"INPUT{n}", "datatype": "INT32", "shape": [1, 16], "data": [1] * 16} for n in (0, 1)]
        body, headers = json.dumps({"inputs": inputs}), {"Authorization": f"Bearer {key}"}
        taken: list[float] = []
        end = time.perf_counter() + seconds
        while (begun := time.perf_counter()) < end:
            connection.request("POST", "/v2/models/simple/infer", body, headers)
            response = connection.getresponse()
            response.read()
            assert response.status == 200, response.status
            taken.append(time.perf_counter() - begun)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=100_000, help="refusals of each kind")
    parser.add_argument("--flood", action="store_true", help="measure a healthy client beside wrong keys")
    parser.add_argument("--rate", type=float, default=0.0, help="the same beside so many wrong keys a second")
    arguments = parser.parse_args()
    if arguments.flood or arguments.rate:
        flood(arguments.rate)
        return
    tries = arguments.tries
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
