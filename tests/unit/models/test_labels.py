"""The labels of classes, as editors on all systems write them."""

from pathlib import Path

import pytest

from modserve.core.configuration.model_config import TensorSpec
from modserve.core.tensors import dtypes
from modserve.models.loading.reading import read_labels
from modserve.testing import config

CONFIG = config(outputs=(TensorSpec("OUT", dtypes.FP32, (3,), label_filename="labels.txt"),))


@pytest.mark.parametrize(
    ("content", "labels"),
    [
        (b"cat\ndog\n", ("cat", "dog")),
        (b"cat\ndog", ("cat", "dog")),
        (b"cat\r\ndog\r\n", ("cat", "dog")),
        (b"\xef\xbb\xbfcat\r\ndog", ("cat", "dog")),
        (b"cat\n\ndog\n", ("cat", "", "dog")),
        (b"\xef\xbb\xbf", ()),
        (b"", ()),
        ("Käse\n".encode(), ("Käse",)),
    ],
)
def test_labels(tmp_path: Path, content: bytes, labels: tuple[str, ...]) -> None:
    (tmp_path / "labels.txt").write_bytes(content)
    warnings: list[str] = []
    assert read_labels(tmp_path, CONFIG, warnings.append) == {"OUT": labels}
    assert warnings == []


def test_labels_that_are_not_utf8_are_said(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_bytes("cat\r\nKäse\r\n".encode("latin-1"))
    warnings: list[str] = []
    assert read_labels(tmp_path, CONFIG, warnings.append) == {"OUT": ("cat", "K\udce4se")}
    assert warnings == [
        f"label_filename of output 'OUT' of model 'model', '{tmp_path}/labels.txt', is not UTF-8: byte 0xe4 in line 2. "
        "HTTP requests for its classes fail; save it as UTF-8"
    ]
