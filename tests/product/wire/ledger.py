"""What was sent, what came of it, and whether that is one of the outcomes that a request may have.

A request may be refused or fail for two reasons only: for what it is itself (it has a deadline, its client cancels), or
for what happens to its model while it is under way. A `Disturbance` is such an event, with the texts that it excuses. A
change in place, a load, a load that fails and an eviction excuse nothing.
"""

import itertools
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

ANSWERED, REFUSED, FAILED, GONE = "answered", "refused", "failed", "gone"
"""`REFUSED` is an error of a client's fault or the wrong moment, `FAILED` one of the server's or the connection's;
`GONE`: the client has left, and hears nothing."""

CUT = "CUT"
"""In place of a code: the connection ended without a response."""

_FAILURES = frozenset({"INTERNAL", "UNKNOWN", CUT})


@dataclass(frozen=True)
class Outcome:
    kind: str
    code: str = ""
    message: str = ""
    version: str = ""


def error(code: str, message: str) -> Outcome:
    return Outcome(FAILED if code in _FAILURES else REFUSED, code, message)


@dataclass(eq=False)
class Ticket:
    """One request, or a sequence of them, which ends at its first error."""

    number: int
    model: str
    way: str
    sent: float
    excuses: tuple[str, ...] = ()
    """Patterns of ``CODE: message``."""
    outcome: Outcome | None = None
    settled: float = 0.0
    settlements: int = 0
    wrong: str = ""
    """What is wrong with the answer."""

    def __str__(self) -> str:
        return f"request {self.number} to '{self.model}' by {self.way}: {self.outcome}"


@dataclass(eq=False)
class Disturbance:
    """What happens to models from `begin` on, until it is closed."""

    models: tuple[str, ...]
    excuses: tuple[str, ...]
    begin: float
    end: float = float("inf")
    most: int = 1_000_000
    """How many requests it may cost."""
    cost: int = 0

    def close(self) -> None:
        self.end = min(self.end, time.monotonic())

    def excuses_ticket(self, ticket: Ticket, said: str) -> bool:
        return (
            ticket.model in self.models
            and ticket.sent <= self.end
            and ticket.settled >= self.begin
            and self.cost < self.most
            and any(re.search(pattern, said) for pattern in self.excuses)
        )


@dataclass
class Ledger:
    """All requests since the start of one server."""

    tickets: list[Ticket] = field(default_factory=list)
    disturbances: list[Disturbance] = field(default_factory=list)
    totals: Counter[str] = field(default_factory=Counter)
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def number(self) -> int:
        with self._changed:
            return next(self._numbers)

    def open(self, model: str, way: str, excuses: Sequence[str] = (), number: int = 0) -> Ticket:
        number = number or self.number()
        with self._changed:
            ticket = Ticket(number, model, way, time.monotonic(), tuple(excuses))
            self.tickets.append(ticket)
            return ticket

    def settle(self, ticket: Ticket, outcome: Outcome, wrong: str = "") -> None:
        with self._changed:
            ticket.settlements += 1
            ticket.outcome, ticket.settled = outcome, time.monotonic()
            ticket.wrong = ticket.wrong or wrong
            self._changed.notify_all()

    def disturb(self, models: Iterable[str], *excuses: str, most: int = 1_000_000) -> Disturbance:
        disturbance = Disturbance(tuple(models), excuses, time.monotonic(), most=most)
        self.disturbances.append(disturbance)
        return disturbance

    @property
    def pending(self) -> list[Ticket]:
        return [ticket for ticket in self.tickets if ticket.outcome is None]

    def wait_for_all(self, patience_s: float, idle_s: Callable[[], float]) -> list[Ticket]:
        """Those that have no outcome though nothing was settled for `patience_s` seconds by the clock `idle_s`.

        It stands still while the server waits for a core.
        """
        left, since = self.pending, idle_s()
        while left:
            with self._changed:
                self._changed.wait(0.25)
            now = self.pending
            if len(now) < len(left):
                since = idle_s()
            elif idle_s() - since > patience_s:
                break
            left = now
        return left

    def judge(self) -> list[str]:
        """What is wrong with the outcomes so far, which are forgotten. All tickets are settled."""
        complaints = []
        for ticket in self.tickets:
            outcome = ticket.outcome
            assert outcome is not None, ticket
            self.totals["sent"] += 1
            self.totals[outcome.kind] += 1
            if ticket.settlements != 1:
                complaints.append(f"{ticket}: settled {ticket.settlements} times")
            if ticket.wrong:
                complaints.append(f"{ticket}: {ticket.wrong}")
            elif outcome.kind in (REFUSED, FAILED) and not self._excused(ticket, outcome):
                complaints.append(f"{ticket}: nothing excuses that")
        self.tickets.clear()
        self.disturbances = [each for each in self.disturbances if each.end == float("inf")]
        parts = sum(self.totals[kind] for kind in (ANSWERED, REFUSED, FAILED, GONE))
        if parts != self.totals["sent"]:
            complaints.append(f"sent is not answered + refused + failed + gone: {dict(self.totals)}")
        return complaints

    def _excused(self, ticket: Ticket, outcome: Outcome) -> bool:
        said = f"{outcome.code}: {outcome.message}"
        if any(re.search(pattern, said) for pattern in ticket.excuses):
            return True
        for disturbance in self.disturbances:
            if disturbance.excuses_ticket(ticket, said):
                disturbance.cost += 1
                return True
        return False
