"""Lists of sha256sum, and paths in them."""

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from modserve.core.errors import ModserveError
from modserve.core.files.checksums import Checksum, digest_of, read_list, relative

A, B = "a" * 64, "B" * 64
LIST = Path("models/SHA256SUMS")


def test_lines_of_text_and_binary_mode() -> None:
    text = f"# made on Monday\n\n{A}  ./1/model.onnx\n{B} *config.pbtxt\n{A}  1/two  spaces\n"
    assert read_list(LIST, text) == [
        Checksum("sha256", "1/model.onnx", A),
        Checksum("sha256", "config.pbtxt", B.lower()),
        Checksum("sha256", "1/two  spaces", A),
    ]


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="there is no sha256sum")
def test_what_sha256sum_writes(tmp_path: Path) -> None:
    names = ["plain", "new\nline", "back\\slash", " space", "ü"]
    for name in names:
        (tmp_path / name).write_text(name)
    run = subprocess.run(["sha256sum", *names], cwd=tmp_path, capture_output=True, text=True, check=True)
    expected = [Checksum("sha256", name, hashlib.sha256(name.encode()).hexdigest()) for name in names]
    assert read_list(LIST, run.stdout) == expected


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("abc  model.onnx", "expected a line of sha256sum"),
        (A, "expected a line of sha256sum"),
        (f"{A}  /etc/passwd", "'/etc/passwd' is not a path below the directory"),
        (f"{A}  1/../../other", "'1/../../other' is not a path below the directory"),
        (f"{A}  a\0b", "is not a path below the directory"),
        (f"{A}  .", "'.' is not a path below the directory"),
    ],
)
def test_lines_that_are_none(line: str, text: str) -> None:
    with pytest.raises(ModserveError) as caught:
        read_list(LIST, f"{A}  fine\n{line}\n")
    assert caught.value.message.startswith("models/SHA256SUMS:2: ")
    assert text in caught.value.message


def test_simplest_paths() -> None:
    assert relative("./1//model.onnx") == "1/model.onnx"
    assert relative("..a") == "..a"


def test_the_algorithms(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    for algorithm in ("md5", "sha1", "sha256", "sha512"):
        assert digest_of(tmp_path / "file", algorithm) == hashlib.new(algorithm, b"content").hexdigest()
