"""The table of measurements, and the choice among its rows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .candidates import FP32, Candidate
from .options import Tolerance

TIE = 0.03
"""A lead of this share is noise: then the row that comes first in the table serves, the reference if it can."""


@dataclass(slots=True)
class CandidateRow:
    """A candidate with its results. With `why` it cannot serve."""

    candidate: Candidate
    seconds: float | None = None
    """Seconds of an execution, see `race.Timing.typical`."""
    rounds: int = 0
    error: float | None = None
    """Difference from the reference, see `comparison.difference`."""
    why: str = ""

    def to_json(self) -> dict[str, object]:
        """Return JSON for the report and the cache. Unknown values are left out, and no number is infinite."""
        members: dict[str, object] = {
            "backend": self.candidate.backend,
            "engine": self.candidate.library,
            "version": self.candidate.version,
            "precision": self.candidate.precision,
            "variant": self.candidate.variant or None,
            "seconds": self.seconds,
            "rounds": self.rounds or None,
            "error": self.error if self.error is not None and math.isfinite(self.error) else None,
            "why": self.why or None,
        }
        return {key: value for key, value in members.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Choice:
    candidate: Candidate
    reason: str
    rows: tuple[Mapping[str, object], ...]
    """Rows from `CandidateRow.to_json`, in the order of the table."""
    details: Mapping[str, object]
    """Details of the measurement, in JSON values; empty if nothing was measured."""


def refusal(row: CandidateRow, tolerance: Tolerance, reference: Candidate) -> str:
    """Return why a measured row must not serve; empty if it may."""
    if row.candidate is reference or row.error is None:
        return ""
    if row.error <= tolerance.limit:
        return ""
    return f"its outputs differ from those of {reference.title} by {row.error:.2g}; the tolerance is {tolerance}"


def not_admitted(candidate: Candidate, tolerance: Tolerance) -> str:
    """Return why a candidate is not even tried at its precision; empty if it is."""
    if candidate.precision == FP32 or tolerance.reduced:
        return ""
    return (
        f"{candidate.precision} is not allowed: the tolerance is {tolerance}, for fp32 only; a number as parameter "
        "'tolerance', such as 0.05, allows it"
    )


def decide(rows: Sequence[CandidateRow], reference: Candidate, samples: str) -> tuple[CandidateRow, str]:
    """Return the row that serves, and why. At least one row was measured and may serve.

    `samples` describes the samples of the error, for people.
    """
    able = [row for row in rows if not row.why and row.seconds is not None]
    fastest = min(able, key=_seconds)
    close = [row for row in able if _seconds(row) <= _seconds(fastest) * (1 + TIE)]
    chosen = close[0]
    name, took = chosen.candidate.title, f"{_seconds(chosen) * 1e3:.3g} ms"
    if len(able) == 1:
        return chosen, f"{name} is the only one of them that may be chosen"
    if chosen is not fastest:
        ahead = 1 - _seconds(fastest) / _seconds(chosen)
        other = f"{fastest.candidate.title} is {ahead:.1%} faster, which may be noise"
        return chosen, f"{name} takes {took}; {other}"
    second = min((row for row in able if row is not chosen), key=_seconds)
    ratio = _seconds(second) / _seconds(chosen)
    what = "as fast as" if second in close else f"{ratio:.3g} times as fast as"
    against = f"{second.candidate.title} with {_seconds(second) * 1e3:.3g} ms"
    error = "" if chosen.candidate is reference or not chosen.error else f"; error {chosen.error:.2g} on {samples}"
    return chosen, f"{name} takes {took}, {what} {against}{error}"


def _seconds(row: CandidateRow) -> float:
    return math.inf if row.seconds is None else row.seconds


def table(rows: Sequence[Mapping[str, object]], chosen: Candidate) -> str:
    """Return the rows for the log, with an arrow at the one that serves."""
    cells = [("", "engine", "precision", "ms", "error", "")]
    for row in rows:
        seconds, error = row.get("seconds"), row.get("error")
        serves = _name(row) == (chosen.backend, chosen.precision, chosen.variant)
        cells.append(
            (
                "→" if serves else "",
                f"{row.get('engine')} {row.get('version', '')}".strip(),
                f"{row.get('precision')} {row.get('variant', '')}".strip(),
                f"{seconds * 1e3:.3f}" if isinstance(seconds, int | float) else "-",
                f"{error:.2g}" if isinstance(error, int | float) else "-",
                str(row.get("why", "")),
            )
        )
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    return "\n".join(line.rstrip() for line in lines)


def _name(row: Mapping[str, object]) -> tuple[object, ...]:
    return row.get("backend"), row.get("precision"), row.get("variant", "")
