"""What engines may do to the models of a server that is one of several."""

from collections.abc import Mapping

from modserve.core.errors import unsupported
from modserve.core.requests.memory import MemoryBudget
from modserve.server.local import LocalServer


class EngineControl:
    """Implements `models.serving.calls.ModelControl`: what the engines of one worker may do to the server's models.

    A load or unload by an engine would be one worker's alone, and may come while all of them load: it is refused.
    """

    def __init__(self, server: LocalServer, why_not: str) -> None:
        """`why_not`: what an engine is told that tries to."""
        self._server = server
        self._why_not = why_not

    @property
    def memory(self) -> MemoryBudget:
        return self._server.memory

    async def load_model(self, name: str, config: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
        raise unsupported(f"a model cannot load model '{name}': {self._why_not}")

    async def unload_model(self, name: str, unload_dependents: bool = False) -> None:
        raise unsupported(f"a model cannot unload model '{name}': {self._why_not}")

    async def check_callable(self, name: str, version: int | None) -> bool:
        return await self._server.check_callable(name, version)
