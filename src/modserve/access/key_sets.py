"""The public keys of an issuer (RFC 7517): read from a file or a URL, and read again when they may have changed.

Reading fails as often as networks do: then the keys that were read last stay. Tokens may name any key, so however many
do, there is at most one reading in `LEAST_SECONDS`.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from modserve.core.files import regular_file
from modserve.core.runtime.failures import count_failure

_log = logging.getLogger(__name__)

LEAST_SECONDS: Final = 10.0
"""Between two readings."""
_PATIENCE: Final = 5.0
_LARGEST: Final = 1024 * 1024
_URLS: Final = ("https://", "http://")


class PublicKey(NamedTuple):
    """A key, and the only algorithm that it is for; empty for any of its kind."""

    key: Any
    algorithm: str


class KeySetError(Exception):
    """A set of keys cannot be read; the text says why."""


def load(place: str) -> dict[str, PublicKey]:
    """Read the keys by their ids, empty for one without an id. Blocks. Raises `KeySetError`."""
    import jwt

    try:
        document = json.loads(_text(place))
        rows: list[object] = list(document["keys"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise KeySetError(f"{type(error).__name__}: {error}") from None
    keys: dict[str, PublicKey] = {}
    for row in rows:
        if not isinstance(row, dict) or row.get("kty") == "oct" or row.get("use", "sig") != "sig":
            continue  # no public key, or not one of signatures
        try:
            keys[str(row.get("kid", ""))] = PublicKey(jwt.PyJWK(row).key, str(row.get("alg", "")))
        except jwt.PyJWTError:
            continue  # of a kind that nobody here knows
    if not keys:
        raise KeySetError("it has no public key for signatures")
    return keys


def _text(place: str) -> bytes:
    if not place.startswith(_URLS):
        with regular_file.open_regular(place) as file:
            return file.read(_LARGEST)
    import urllib.request  # which imports much

    with urllib.request.urlopen(place, timeout=_PATIENCE) as response:
        if urlsplit(response.url).scheme not in ("http", "https"):
            raise OSError(f"it leads to {urlsplit(response.url).scheme}:")
        text: bytes = response.read(_LARGEST)
        return text


class KeySet:
    """The keys at `place`, which count as new for `fresh` seconds. `steady`: seconds that never go back."""

    def __init__(
        self,
        place: str,
        fresh: float,
        steady: Callable[[], float],
        load: Callable[[str], Mapping[str, PublicKey]] = load,
    ) -> None:
        self.place = place
        self.fresh = fresh
        self._steady = steady
        self._load = load
        self._keys: Mapping[str, PublicKey] = {}
        self._read_at: float | None = None
        """When a reading began last."""
        self._reading: asyncio.Task[None] | None = None
        self._complaint = ""
        self.read_s = 0.0
        """Time of the last good reading, in seconds since 1970; 0 for never."""

    async def key(self, kid: str) -> PublicKey | None:
        """The key with this id, None if there is none; without an id, the only key."""
        key = self._find(kid)
        overdue = self._read_at is None or self._steady() - self._read_at >= self.fresh
        if key is None or overdue:
            reading = self._begin()
            if key is None and reading is not None:
                await asyncio.shield(reading)
                key = self._find(kid)
        return key

    def _find(self, kid: str) -> PublicKey | None:
        if not kid and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid)

    def _begin(self) -> "asyncio.Task[None] | None":
        """The reading under way, or one that begins now unless another began a short while ago."""
        if self._reading is None:
            now = self._steady()
            if self._read_at is not None and now - self._read_at < LEAST_SECONDS:
                return None
            self._read_at = now
            self._reading = asyncio.get_running_loop().create_task(self._read(), name="key set")
        return self._reading

    async def _read(self) -> None:
        try:
            self._keys = await asyncio.to_thread(self._load, self.place)
            self._complaint, self.read_s = "", time.time()
        except KeySetError as error:
            count_failure("key_set")
            if str(error) != self._complaint:
                self._complaint = str(error)
                _log.error("cannot read the keys of tokens at %s, the previous ones stay: %s", self.place, error)
        except Exception as error:
            count_failure("key_set", error)
        finally:
            self._reading = None
