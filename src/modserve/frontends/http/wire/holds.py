"""What one connection holds of the server's memory budget."""

from modserve.core.memory import MemoryBudget


class Hold:
    """`size` bytes of the budget, held for one purpose."""

    __slots__ = ("_memory", "size")

    def __init__(self, memory: MemoryBudget) -> None:
        self._memory = memory
        self.size = 0

    def resize(self, size: int) -> None:
        """Raises MemoryExhaustedError; then nothing has changed."""
        if size > self.size:
            self._memory.take(size - self.size)
        else:
            self._memory.give_back(self.size - size)
        self.size = size

    def force(self, size: int) -> None:
        """The same for what cannot be refused any more."""
        self._memory.give_back(self.size)
        self._memory.force(size)
        self.size = size
