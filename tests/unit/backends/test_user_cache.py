"""Where backends keep what they can make again."""

from pathlib import Path

import pytest

from modserve.backends.user_cache import directory_of, user_cache


def test_the_directory_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert user_cache("quantized") == Path("/caches/modserve/quantized")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert user_cache("quantized") == Path("/home/somebody/.cache/modserve/quantized")


@pytest.mark.parametrize(("text", "directory"), [("none", None), ("", None), ("/a", Path("/a"))])
def test_the_directory_that_an_option_names(text: str, directory: Path | None) -> None:
    assert directory_of(text, "quantized") == directory
