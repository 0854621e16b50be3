"""Construction of the request recorder from the settings."""

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from modserve.__about__ import __version__
from modserve.core.errors import invalid
from modserve.settings import Settings

if TYPE_CHECKING:
    from modserve.recording.recorder import Recorder


def make_recorder(settings: Settings, place: tuple[int, int]) -> "Recorder | None":
    """Records requests as the settings say, in a process that is which of how many at this `place`; None for none."""
    record = settings.record
    if not record.folder:
        return None
    from modserve.recording.record import RecordFolder
    from modserve.recording.recorder import Recorder

    worker, workers = place
    server = f"{settings.id}, modserve {__version__}"
    folder = RecordFolder(Path(record.folder), record.size // workers, secrets.token_hex(8), server, worker, workers)
    patterns = (settings.http.header_pattern, settings.grpc.header_pattern)
    return Recorder(record, folder, [pattern for pattern in patterns if pattern is not None])


def open_folder(recorder: "Recorder") -> None:
    """Blocks. Raises INVALID_ARG if the folder cannot be written."""
    try:
        recorder.open()
    except OSError as error:
        raise invalid(f"requests cannot be recorded: {error}; '--record dir=DIR' names another folder") from None
