"""Settings of the recording of requests (``--record``)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """Recording settings. An empty `folder` disables recording.

    `models` are patterns of names with their own rates; None stands for `rate`. The last pattern that matches a name
    counts; without any, all models are recorded. `redacted` are patterns of models and of tensors; contents of these
    are left out. `size` is the maximum number of bytes of all files.
    """

    folder: str = ""
    rate: float = 0.01
    models: tuple[tuple[str, float | None], ...] = ()
    redacted: tuple[tuple[str, str], ...] = ()
    size: int = 1 << 30
