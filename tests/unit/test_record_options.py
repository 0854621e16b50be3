"""``--record``: what it takes, and what it says of what it does not take."""

from pathlib import Path

import pytest

from modserve import Settings
from modserve.core.configuration.record_settings import RecordSettings
from modserve.settings import OptionError, from_command_line


def record(*texts: str) -> RecordSettings:
    options = [f"--record={text}" for text in texts]
    return from_command_line(["--model-repository=m", *options], {}).settings.record


@pytest.mark.parametrize(
    ("texts", "settings"),
    [
        ([], RecordSettings()),
        (["dir=/a"], RecordSettings("/a", 0.01, (), (), 1 << 30)),
        (["dir=/a,b=c,rate=1"], RecordSettings("/a,b=c", 1.0)),
        (["dir=/a", "rate=0.5,size=2MB", "size=64KiB"], RecordSettings("/a", 0.5, size=65536)),
        (
            ["dir=a,models=res*,models=bert:0.5", "models=a:b:1"],
            RecordSettings("a", models=(("res*", None), ("bert", 0.5), ("a:b", 1.0))),
        ),
        (["dir=a,redact=*:TEXT,redact=b:a:*"], RecordSettings("a", redacted=(("*", "TEXT"), ("b", "a:*")))),
        (["dir=a,size=1000000"], RecordSettings("a", size=1_000_000)),
        (["dir=a,size=3TiB"], RecordSettings("a", size=3 << 40)),
    ],
)
def test_settings(texts: list[str], settings: RecordSettings) -> None:
    assert record(*texts) == settings


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["/var/records"], "expected 'dir=DIR,rate=0.01,models=PATTERN,redact=MODEL:TENSOR,size=1GiB', got: /var/rec"),
        (["dir="], "expected 'dir=DIR,"),
        (["rate=0.1"], "nothing says where to record: 'dir=DIR' is missing"),
        (["folder=a"], "there is no setting 'folder'; the settings are dir, rate, models, redact, size"),
        (["dir=a,rate=2"], "'rate': expected a number from 0 to 1, the part of all requests, got: 2"),
        (["dir=a,rate=nan"], "'rate': expected a number from 0 to 1"),
        (["dir=a,models=:0.1"], "'models': expected PATTERN or PATTERN:RATE, got: :0.1"),
        (["dir=a,models=b:often"], "'rate': expected a number from 0 to 1, the part of all requests, got: often"),
        (["dir=a,redact=TEXT"], "'redact': expected MODEL:TENSOR, both may be patterns, got: TEXT"),
        (["dir=a,size=1 lot"], "'size': expected bytes such as 500MB or 1GiB, got: 1 lot"),
        (["dir=a,size=1kB"], "'size': expected at least 64KiB, got: 1kB"),
    ],
)
def test_mistakes(texts: list[str], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        record(*texts)
    assert message in str(caught.value)


def test_keyword(tmp_path: Path) -> None:
    assert Settings(model_repository=["m"], record=f"dir={tmp_path}").record == RecordSettings(str(tmp_path))
