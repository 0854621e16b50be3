"""Which requests a server records, and where (``--record``)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """Nothing is recorded without a `folder`.

    `models` are patterns of names with rates of their own; None stands for `rate`. The last pattern that a name matches
    counts; without any, all models are recorded. `redacted` are patterns of models and of their tensors, whose contents
    are left out. `size` is the most bytes of all files.
    """

    folder: str = ""
    rate: float = 0.01
    models: tuple[tuple[str, float | None], ...] = ()
    redacted: tuple[tuple[str, str], ...] = ()
    size: int = 1 << 30
