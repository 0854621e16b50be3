"""What counts as a change."""

from pathlib import Path

import pytest

from modserve.core.servable import ModelDirectory
from modserve.repository.poll import changes

OLD = ModelDirectory("a", Path("a"), (1,), marks={None: "x", 1: "y"})
SAME = ModelDirectory("a", Path("a"), (1,), marks={None: "x", 1: "y"})


@pytest.mark.parametrize(
    "new",
    [
        ModelDirectory("a", Path("a"), (1,), marks={None: "x", 1: "z"}),
        ModelDirectory("a", Path("a"), (1,), marks={None: "z", 1: "y"}),
        ModelDirectory("a", Path("a"), (1, 2), marks={None: "x", 1: "y", 2: ""}),
        ModelDirectory("a", Path("b/a"), (1,), marks={None: "x", 1: "y"}),
    ],
    ids=["version", "other files", "new version", "elsewhere"],
)
def test_different(new: ModelDirectory) -> None:
    assert changes({"a": OLD}, {"a": new}) == {"a": new}


def test_alike_new_gone_and_unknown() -> None:
    assert changes({"a": OLD}, {"a": SAME}) == {}
    assert changes({}, {"a": SAME}) == {"a": SAME}
    assert changes({"a": OLD, "b": None}, {}) == {"a": None, "b": None}
    assert changes({"a": None}, {"a": SAME}) == {"a": SAME}
