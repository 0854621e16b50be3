"""Finds backends by name among the installed entry points. A backend is imported when a model first asks for it."""

import threading
from importlib.metadata import entry_points
from typing import cast

from modserve.core.errors import internal, invalid

from .api import Backend

GROUP = "modserve.backends"


class BackendRegistry:
    """The backends of this process. Safe to use from several threads."""

    def __init__(self, extra: dict[str, Backend] | None = None) -> None:
        self._entries = {entry.name: entry for entry in entry_points(group=GROUP)}
        self._loaded: dict[str, Backend] = dict(extra or {})
        self._lock = threading.Lock()

    @property
    def names(self) -> list[str]:
        return sorted({*self._entries, *self._loaded})

    def get(self, name: str) -> Backend:
        """The backend called `name`. Raises INVALID_ARG for an unknown name, INTERNAL if it can not be imported."""
        with self._lock:
            backend = self._loaded.get(name)
            if backend is None:
                entry = self._entries.get(name)
                if entry is None:
                    raise invalid(f"unable to find backend '{name}', installed backends are: {', '.join(self.names)}")
                try:
                    backend = cast(Backend, entry.load()())
                except Exception as error:
                    raise internal(f"failed to load backend '{name}' ({entry.value}): {error}") from error
                self._loaded[name] = backend
            return backend
