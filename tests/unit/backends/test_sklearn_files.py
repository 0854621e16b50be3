"""Files of scikit-learn models."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from modserve.backends.sklearn import files
from modserve.backends.sklearn.options import Permissions


def test_two_models_are_never_read_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, most, first_is_in = [0], [0], threading.Event()

    def read(path: Path, name: str, allowed: Permissions) -> Any:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        first_is_in.set()
        never.wait(0.2)  # time for the other to come in, which it must not
        inside[0] -= 1
        return object()

    monkeypatch.setattr(files, "_create", read)
    monkeypatch.setattr(files, "_compare_versions", lambda *_: None)
    never = threading.Event()
    permissions: Any = None
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(files.load, Path("a.skops"), "a", permissions)
        assert first_is_in.wait(10)
        second = threads.submit(files.load, Path("b.skops"), "b", permissions)
        assert first.result(10)
        assert second.result(10)
    assert most == [1]
