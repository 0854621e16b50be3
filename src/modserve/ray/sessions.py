"""Assignment of sequences and models to replicas; all observers of the same replicas agree on it."""

import hashlib
import random
from collections.abc import Collection, Iterable

from modserve.core.requests.sequence import SequenceKey


def session_id(model: str, key: SequenceKey) -> str:
    """Return Ray's session id of a sequence. Text ids never equal numeric ids."""
    tenant, id = key if isinstance(key, tuple) else ("", key)
    return f"{model}\0{type(id).__name__}\0{id}\0{tenant}"


_DIRECT = "\0"
"""Prefix of sessions that consist of a replica's name only."""
_known: frozenset[str] = frozenset()
MODEL_HOMES = 2
"""Number of replicas for the requests of a model, if clients name the model to Ray."""


def learn(replicas: Iterable[str]) -> None:
    """Set the current replicas of the one deployment that this process calls."""
    global _known
    _known = frozenset(replicas)


def list_replicas() -> frozenset[str]:
    """Return the replicas last reported to this process; none before the first report."""
    return _known


def direct(replica: str) -> str:
    """Return the session for calls to one replica."""
    return f"{_DIRECT}{replica}"


def owner(session: str, replicas: Iterable[str]) -> str:
    """Return the name of a session's replica. When a replica comes or goes, only its own sessions move."""
    return max(replicas, key=lambda name: _weight(session, name))


def candidates(session: str, model: str, replicas: Collection[str]) -> list[str]:
    """Return the names of the replicas of which the less busy one gets a call: the session's, or the model's.

    Without a session or model, two random replicas.
    """
    if session:
        name = session.removeprefix(_DIRECT)
        return [name if name != session and name in replicas else owner(session, replicas)]
    if model:
        return sorted(replicas, key=lambda name: _weight(model, name))[-MODEL_HOMES:]
    return random.sample(sorted(replicas), min(2, len(replicas)))


def _weight(key: str, name: str) -> tuple[bytes, str]:
    text = f"{key}\0{name}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), name
