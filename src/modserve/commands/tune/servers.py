"""Temporary servers, each with a copy of one model."""

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from modserve.core.errors import invalid

from .. import own_server
from ..destination import Destination

CONFIG_FILE = "config.pbtxt"


class ModelCopy:
    """A repository with a copy of a model, whose configuration is another each time."""

    def __init__(self, directory: Path, model: Path) -> None:
        """Raises INVALID_ARG for what cannot be copied."""
        self.repository = directory
        self.folder = directory / model.name
        try:
            shutil.copytree(model, self.folder)
        except (OSError, shutil.Error) as error:
            raise invalid(f"cannot copy '{model}' to '{directory}': {error}; TMPDIR names another place") from None

    def configure(self, text: str) -> None:
        (self.folder / CONFIG_FILE).write_text(text, "utf-8")


def serving(copy: ModelCopy, options: Sequence[str], seconds: float) -> contextlib.AbstractContextManager[Destination]:
    """A server of a copy, until it is no longer needed. Raises INVALID_ARG if the model does not load in `seconds`."""
    return own_server.serving([f"--model-repository={copy.repository}", *options], seconds, copy.folder.name)
