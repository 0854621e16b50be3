"""What was sent, and what became of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from modserve.core.errors import Code, ModserveError
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.memory import MemoryBudget, UnsentResponses
from modserve.core.requests.response import InferenceResponse, Outcome

from .models import GENERATION

NEVER: Final = (
    "stopping",
    "Server not ready",
    "was unloaded before the request ran",
    "was closed before the execution ended",
    "has been closed",
    "this is a bug",
    "let go of a request",
)
"""Parts of the failures that nobody may hear whose request was accepted: it is finished, whatever comes after it."""

UNDELIVERED = "failed to deliver the response"
"""What a sink gets that has raised."""


class SinkError(Exception):
    """What a client's side raises in the middle of an outcome."""


@dataclass(eq=False)
class Entry:
    """One request. Implements `core.requests.response.ResponseSink`, as the client's side of it."""

    number: int
    """It is the request's id, which comes back with each response."""
    model: str
    value: int
    """What the engine is to respond with."""
    decoupled: bool
    note: Callable[[str], None]
    """Gets what is wrong."""
    unsent: UnsentResponses
    reads: bool = True
    """Whether its client reads what it gets."""
    react: Callable[[], None] = lambda: None
    """What else happens when it hears of its end."""
    inflight: Inflight | None = None
    refusal: ModserveError | None = None
    responses: int = 0
    unread: int = 0
    failure: ModserveError | None = None
    ended: bool = False
    gone: bool = False
    """Its client has cancelled it."""
    length: int = 1
    """How often it has its value."""
    recorded: bool = False
    """It has come as far as the recorder."""
    raised: bool = False
    """Its client's side has raised at its last outcome."""
    told: bool = False
    """It has had the error that follows."""
    generation: int = 0
    """That of the model's files that were served when it was sent: none of its responses may come of older ones."""
    in_sequence: bool = False
    """It ends with its sequence, of which another request may be cancelled."""

    def __repr__(self) -> str:
        state = "refused" if self.refusal else "failed" if self.failure else "answered" if self.ended else "open"
        return f"request {self.number} for '{self.model}' ({state}, {self.responses} responses)"

    @property
    def open(self) -> bool:
        """Whether it was accepted, and has not had its last outcome."""
        return self.refusal is None and not self.ended

    def settle(self, outcome: Outcome, final: bool) -> None:
        if self.raised and not self.told:
            self.told = True
            if not (final and isinstance(outcome, ModserveError) and outcome.message.startswith(UNDELIVERED)):
                self.note(f"{self!r} has raised, and then got {outcome!r}, final: {final}")
            return
        if self.ended:
            self.note(f"{self!r} was settled again, with {outcome!r}")
        self.ended = final
        if isinstance(outcome, InferenceResponse):
            self._check(outcome)
            self.responses += 1
            if not self.ended or self.decoupled:
                self.unread += 1
                self.unsent.add(outcome.size)
        elif outcome is not None:
            self.failure = outcome
            if outcome.code is not Code.CANCELLED and any(part in outcome.message for part in NEVER):
                self.note(f"{self!r} was accepted, and then failed with '{outcome.message}'")
            if outcome.code is Code.CANCELLED and not (self.gone or self.in_sequence):
                self.note(f"{self!r} was cancelled by nobody: '{outcome.message}'")
        if not self.decoupled and (not final or outcome is None or self.responses > 1):
            self.note(f"{self!r} is not decoupled, and got {outcome!r}, final: {final}")
        if self.gone:
            self.unsent.release()
            self.unread = 0
        if self.reads:
            self.read()
        if final:
            try:
                self.react()
            except SinkError:
                self.raised = True
                raise

    def _check(self, response: InferenceResponse) -> None:
        rows = response.outputs["OUT"].array.tolist()
        values = [[int(each) % GENERATION for each in row] for row in rows]
        generations = {int(each) // GENERATION for row in rows for each in row}
        if min(generations) < self.generation:
            self.note(f"{self!r} was sent to files of generation {self.generation}, and {min(generations)} answers")
        if response.id != str(self.number) or values != [[self.value] * self.length]:
            self.note(f"{self!r} with {self.length} of {self.value} got {values} of request {response.id!r}")

    def read(self, most: int = 1000) -> None:
        """Read what has come."""
        while self.unread and most:
            self.unread -= 1
            most -= 1
            self.unsent.release_first()
            if self.inflight is not None:
                self.inflight.on_sent()

    def cancel(self) -> None:
        """The client goes."""
        self.gone = True
        if self.inflight is not None:
            self.inflight.cancel()
        self.unsent.release()
        self.unread = 0


@dataclass
class Ledger:
    """Every request, and everything that was wrong."""

    memory: MemoryBudget
    entries: list[Entry] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def enter(self, model: str, value: int | None, decoupled: bool) -> Entry:
        number = 1000 + len(self.entries)
        number_or_value = number if value is None else value
        entry = Entry(number, model, number_or_value, decoupled, self.wrong.append, UnsentResponses(self.memory))
        self.entries.append(entry)
        return entry

    @property
    def open(self) -> list[Entry]:
        return [each for each in self.entries if each.open]

    def check(self) -> None:
        """Raises AssertionError for anything that was wrong by now."""
        assert not self.wrong, "\n".join(self.wrong)

    def check_sums(self) -> None:
        """When all is over: what was sent is what was answered, refused or failed."""
        counts = [
            (each.refusal is not None) + (each.failure is not None) + (each.ended and each.failure is None)
            for each in self.entries
        ]
        assert all(count == 1 for count in counts), [e for e, c in zip(self.entries, counts, strict=True) if c != 1]
