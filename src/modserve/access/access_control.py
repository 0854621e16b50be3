"""Keys for a server: from its file, from the environment, or from both."""

from pathlib import Path

from modserve.core.errors import invalid
from modserve.core.secret_names import KEY_VARIABLE
from modserve.core.tenants import Tenant

from .authority import Authority
from .identity import KINDS, Identity
from .key_file import AccessFile, Key
from .secret import SHORTEST, digest
from .watched_file import WatchedFile

SINGLE = KEY_VARIABLE
"""The name of a single key."""


class AccessControl:
    """Who may call a server, kept up to date between `start` and `stop`. Raises INVALID_ARG for what is no key or file.

    `file`: the path of the file of keys; `single`: a key with all rights; empty for none. `health_open`: anybody may
    ask for the health of the server.
    """

    def __init__(self, file: str, single: str = "", health_open: bool = True) -> None:
        self._watched = WatchedFile(Path(file)) if file else None
        keys = {digest(single): single_key(single)} if single else {}
        content = AccessFile({}) if self._watched is None else self._watched.content
        self.authority = Authority(content, keys, health_open=health_open)

    def start(self) -> None:
        """Follow the file from now on, on the running event loop."""
        if self._watched is not None:
            self._watched.start(self.authority.replace)

    def stop(self) -> None:
        if self._watched is not None:
            self._watched.stop()
        self.authority.close()


def single_key(secret: str) -> Key:
    """A key with all rights. Raises INVALID_ARG for a secret that is too short, or cannot be in a header."""
    if len(secret) < SHORTEST or not secret.isascii() or not secret.isprintable() or " " in secret:
        raise invalid(
            f"{SINGLE} has {len(secret)} characters, expected at least {SHORTEST}, printable ASCII without spaces"
        )
    return Key(Identity(SINGLE, Tenant("default"), {"*": frozenset(KINDS)}))
