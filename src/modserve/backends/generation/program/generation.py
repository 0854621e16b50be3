"""A request on its way through an engine: what of its outputs has come, and what is still to be sent."""

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from .contract import GenerationCall, OutputPiece, Wishes, arrays


class GenerationOutput(Protocol):
    """One of the `n` outputs of a request."""

    @property
    def finished(self) -> bool: ...

    @property
    def has_news(self) -> bool:
        """Whether there is text that was not taken, or an end that was not."""

    def take(self, wishes: Wishes) -> OutputPiece:
        """What has not been taken yet."""


OutputT = TypeVar("OutputT", bound=GenerationOutput)


class Generation(Generic[OutputT]):
    """`prompt_length` is in tokens."""

    def __init__(self, call: GenerationCall, outputs: Sequence[OutputT], prompt_length: int) -> None:
        self.call = call
        self.outputs = outputs
        self.prompt_length = prompt_length
        self._before = call.text if call.wishes.prepend_input else ""

    @property
    def finished(self) -> bool:
        return all(output.finished for output in self.outputs)

    @property
    def is_due(self) -> bool:
        """Whether a response is to be sent. A client that is slow gets what has come meanwhile with a later one."""
        if self.finished:
            return True
        news = self.call.wishes.stream and any(output.has_news for output in self.outputs)
        return news and not self.call.sender.is_paused()

    def tensors(self) -> dict[str, Any]:
        """What has not been sent yet, by the names of the model's outputs."""
        wishes = self.call.wishes
        before, self._before = self._before, ""
        return arrays(wishes, [output.take(wishes) for output in self.outputs], self.prompt_length, before)
