"""A request on its way through an engine: its outputs so far, and the part still to be sent."""

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from .contract import GenerationCall, OutputOptions, OutputPiece, arrays


class GenerationOutput(Protocol):
    """An output, of the `n` outputs of a request."""

    @property
    def finished(self) -> bool: ...

    @property
    def has_news(self) -> bool:
        """True if text or an end has not been taken."""

    def take(self, options: OutputOptions) -> OutputPiece:
        """Return everything that has not been taken yet."""


OutputT = TypeVar("OutputT", bound=GenerationOutput)


class Generation(Generic[OutputT]):
    """A request with its outputs. `prompt_length` is in tokens."""

    def __init__(self, call: GenerationCall, outputs: Sequence[OutputT], prompt_length: int) -> None:
        self.call = call
        self.outputs = outputs
        self.prompt_length = prompt_length
        self._before = call.text if call.options.prepend_input else ""

    @property
    def finished(self) -> bool:
        return all(output.finished for output in self.outputs)

    @property
    def is_due(self) -> bool:
        """True if a response is to be sent. A slow client gets what has accumulated with a later one."""
        if self.finished:
            return True
        news = self.call.options.stream and any(output.has_news for output in self.outputs)
        return news and not self.call.sender.is_paused()

    def tensors(self) -> dict[str, Any]:
        """Return everything that has not been sent yet, by the names of the model's outputs."""
        options = self.call.options
        before, self._before = self._before, ""
        return arrays(options, [output.take(options) for output in self.outputs], self.prompt_length, before)
