"""Which replica has a sequence: the same one for every proxy and every replica that sees the same replicas."""

import hashlib
from collections.abc import Iterable

from modserve.core.requests.sequence import SequenceKey


def session_id(model: str, key: SequenceKey) -> str:
    """A sequence in Ray's words. Ids that are texts have nothing to do with those that are numbers."""
    tenant, id = key if isinstance(key, tuple) else ("", key)
    return f"{model}\0{type(id).__name__}\0{id}\0{tenant}"


def owner(session: str, replicas: Iterable[str]) -> str:
    """One of the replicas, by their names. Where one comes or goes, only its own sessions move."""

    def weight(name: str) -> tuple[bytes, str]:
        text = f"{session}\0{name}"
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), name

    return max(replicas, key=weight)
