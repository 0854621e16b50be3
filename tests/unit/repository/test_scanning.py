"""What counts as a change."""

from pathlib import Path

import pytest

from modserve.core.loading import Listing
from modserve.repository.local import LocalRepository
from modserve.repository.scanning import changes

HERE = LocalRepository(Path())
OLD = Listing("a", HERE, Path("a"), (1,), marks={None: "x", 1: "y"})
SAME = Listing("a", HERE, Path("a"), (1,), marks={None: "x", 1: "y"})


@pytest.mark.parametrize(
    "new",
    [
        Listing("a", HERE, Path("a"), (1,), marks={None: "x", 1: "z"}),
        Listing("a", HERE, Path("a"), (1,), marks={None: "z", 1: "y"}),
        Listing("a", HERE, Path("a"), (1, 2), marks={None: "x", 1: "y", 2: ""}),
        Listing("a", HERE, Path("b/a"), (1,), marks={None: "x", 1: "y"}),
    ],
    ids=["version", "other files", "new version", "elsewhere"],
)
def test_different(new: Listing) -> None:
    assert changes({"a": OLD}, {"a": new}) == {"a": new}


def test_alike_new_gone_and_unknown() -> None:
    assert changes({"a": OLD}, {"a": SAME}) == {}
    assert changes({}, {"a": SAME}) == {"a": SAME}
    assert changes({"a": OLD, "b": None}, {}) == {"a": None, "b": None}
    assert changes({"a": None}, {"a": SAME}) == {"a": SAME}
