"""What has changed in the model repositories since the last look at them."""

from collections.abc import Mapping

from modserve.core.servable import ModelDirectory


def changes(
    before: Mapping[str, ModelDirectory | None], now: Mapping[str, ModelDirectory]
) -> dict[str, ModelDirectory | None]:
    """The models that are new or different, with what they are now; None for those that are gone.

    A file counts as different by its time of modification and its size, anywhere in the model's directory. A model of
    which `before` knows nothing (None) is different in any case.
    """
    gone = dict.fromkeys(before.keys() - now.keys())
    return gone | {name: directory for name, directory in now.items() if not _alike(before.get(name), directory)}


def _alike(before: ModelDirectory | None, now: ModelDirectory) -> bool:
    return before is not None and (before, before.marks) == (now, now.marks)
