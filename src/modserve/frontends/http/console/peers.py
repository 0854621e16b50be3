"""The other servers that the console shows: called while a page is open, with the key of the page's reader."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from modserve.client.address import Access, Address
from modserve.client.address_list import Lookup, addresses, lookup
from modserve.client.errors import ClientError
from modserve.client.http_async import AsyncHttpTransport
from modserve.client.transport import HEALTH, INDEX, STATISTICS, ControlCall
from modserve.core.lifecycle import LifecycleState
from modserve.server import Server

_READY = LifecycleState.READY.value
_SECONDS = 2.0
"""Seconds for a server to respond, and for which responses are shown again to others with the same key."""
_MOST_SERVERS, _MOST_KEYS, _MOST_DIFFERENCES = 64, 32, 5

Row = Sequence[str]
"""The address, the state, what differs from this server, READY versions, requests a second, and failed requests."""
_ABSENT = "Not Found"
_ADMIN_ADVICE = "--peers has to name its admin port"


class PeerReader:
    """Reader of the table's rows. `text` names servers as ``--url`` of commands does."""

    def __init__(
        self, server: Server, text: str, *, clock: Callable[[], float] = time.monotonic, resolve: Lookup = lookup
    ) -> None:
        self._server, self._text = server, text
        self._clock, self._resolve = clock, resolve
        self._rows: dict[int, tuple[float, list[Row]]] = {}
        """Rows by the hash of the credentials, and the time until which they are shown."""
        self._requests: dict[str, tuple[float, int]] = {}
        """Time of the last call of a server, and the number of requests it had had."""

    async def rows(self, credentials: Mapping[str, str]) -> list[Row]:
        """Return a row for each server; for a wrong address, one that says so."""
        key, now = hash(frozenset(credentials.items())), self._clock()
        until, rows = self._rows.get(key, (0.0, []))
        if now < until:
            return rows
        try:
            places = await asyncio.to_thread(addresses, self._text, self._resolve)
        except ClientError as error:
            return [_row(self._text, error.message)]
        access = Access(credentials)
        rows = list(await asyncio.gather(*(self._read(place, access) for place in places[:_MOST_SERVERS])))
        if len(self._rows) >= _MOST_KEYS:
            self._rows.clear()
        self._rows[key] = now + _SECONDS, rows
        return rows

    async def _read(self, place: Address, access: Access) -> Row:
        if place.over_grpc:
            return _row(str(place), "expected the address of its HTTP port")
        transport = AsyncHttpTransport(place, access)
        try:
            async with asyncio.timeout(_SECONDS):
                health = await transport.call(ControlCall(HEALTH))
                index = await transport.call(ControlCall(INDEX))
                statistics = await transport.call(ControlCall(STATISTICS))
            return self._describe(str(place), health, index, statistics)
        except TimeoutError:  # before ClientError: one of its kinds is a TimeoutError as well
            return _row(str(place), f"no response within {_SECONDS:g} s")
        except ClientError as error:
            text = error.message.removeprefix(f"cannot reach a server at {place}: ")
            return _row(str(place), f"{text}: {_ADMIN_ADVICE}" if text == _ABSENT else text)
        except (AttributeError, KeyError, TypeError, ValueError):
            return _row(str(place), "does not speak the protocol")
        finally:
            await transport.close()

    def _describe(self, url: str, health: Any, index: Any, statistics: Any) -> Row:
        ready = {(row["name"], str(row["version"])) for row in index if row.get("state") == _READY}
        counts = [row["inference_stats"] for row in statistics["model_stats"]]
        requests, failures = (sum(int(each[name]["count"]) for each in counts) for name in ("success", "fail"))
        now, (then, before) = self._clock(), self._requests.get(url, (0.0, -1))
        self._requests[url] = now, requests
        rate = f"{max(0, requests - before) / (now - then):.3g}" if before >= 0 and now > then else "–"
        state = "ready" if health["ready"] else f"not ready: {health.get('phase', '')}".rstrip(": ")
        return _row(url, state, self._difference(ready), str(len(ready)), rate, f"{failures:,}")

    def _difference(self, ready: set[tuple[str, str]]) -> str:
        own = {(each.name, str(each.version)) for each in self._server.index() if each.state.value == _READY}
        parts = [f"no {' '.join(key)}" for key in sorted(own - ready)] + [" ".join(key) for key in sorted(ready - own)]
        more = len(parts) - _MOST_DIFFERENCES
        return ", ".join(parts[:_MOST_DIFFERENCES] + [f"{more} more"] * (more > 0))


def _row(url: str, state: str, difference: str = "", versions: str = "–", rate: str = "–", failures: str = "–") -> Row:
    return url, state, difference, versions, rate, failures
