"""The labels of classes, as editors on all systems write them."""

import logging
from pathlib import Path

import pytest

from modserve.core.configuration.model_config import TensorSpec
from modserve.core.tensors import dtypes
from modserve.models.loading.model_files import read_labels
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
def test_labels(tmp_path: Path, content: bytes, labels: tuple[str, ...], caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "labels.txt").write_bytes(content)
    assert read_labels(tmp_path, CONFIG) == {"OUT": labels}
    assert caplog.records == []


def test_labels_that_are_not_utf8_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    (tmp_path / "labels.txt").write_bytes("cat\r\nKäse\r\n".encode("latin-1"))
    assert read_labels(tmp_path, CONFIG) == {"OUT": ("cat", "K\udce4se")}
    assert caplog.messages == [
        f"label_filename of output 'OUT' of model 'model', '{tmp_path}/labels.txt', is not UTF-8: byte 0xe4 in line 2. "
        "HTTP requests for its classes fail; save it as UTF-8"
    ]
