"""Assignment of sequences and models to replicas: the same for all observers of the same replicas."""

import hashlib
import random
from collections.abc import Collection, Iterable

from modserve.core.requests.sequence import SequenceKey


def session_id(model: str, key: SequenceKey) -> str:
    """Return a sequence in Ray's words. Ids that are texts have nothing to do with those that are numbers."""
    tenant, id = key if isinstance(key, tuple) else ("", key)
    return f"{model}\0{type(id).__name__}\0{id}\0{tenant}"


_DIRECT = "\0"
"""Prefix of sessions that are only the name of a replica."""
_known: frozenset[str] = frozenset()
MODEL_HOMES = 2
"""Replicas that get the requests of a model which clients name to Ray."""


def learn(replicas: Iterable[str]) -> None:
    """These replicas there are. A process calls those of one deployment."""
    global _known
    _known = frozenset(replicas)


def list_replicas() -> frozenset[str]:
    """Return the replicas that there are, as this process has heard last; none as long as it has not heard."""
    return _known


def direct(replica: str) -> str:
    """Return the session of calls for one replica."""
    return f"{_DIRECT}{replica}"


def owner(session: str, replicas: Iterable[str]) -> str:
    """Return a session's replica, by name. When a replica comes or goes, only its own sessions move."""
    return max(replicas, key=lambda name: _weight(session, name))


def candidates(session: str, model: str, replicas: Collection[str]) -> list[str]:
    """The replicas of which the less busy one gets a call, by their names: that of the session; or those of the model.

    Without either, two of them by chance.
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
