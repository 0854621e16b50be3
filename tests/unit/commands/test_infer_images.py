"""Pictures as tensors: where the shape says how, and where it does not."""

import io
import sys

import numpy as np
import pytest
from PIL import Image

from modserve.commands.infer.arguments import InputSpec
from modserve.commands.infer.images import ImageHints, ImageLayout, decode, layout
from modserve.core.errors import ModserveError
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype


def spec(*shape: int, datatype: Datatype = dtypes.UINT8) -> InputSpec:
    return InputSpec("IN", datatype, shape)


@pytest.mark.parametrize(
    ("shape", "batched", "expected"),
    [
        ((-1, 3, 224, 200), True, ImageLayout("CHW", 3, 224, 200)),
        ((-1, 3, 224, 200), None, ImageLayout("CHW", 3, 224, 200)),
        ((-1, 224, 200, 3), None, ImageLayout("HWC", 3, 224, 200)),
        ((1, 1, 28, 28), False, ImageLayout("CHW", 1, 28, 28)),
        ((3, 224, 224), False, ImageLayout("CHW", 3, 224, 224)),
        ((3, -1, -1), None, ImageLayout("CHW", 3, -1, -1)),
        ((-1, -1, 4), False, ImageLayout("HWC", 4, -1, -1)),
        ((-1, -1, -1), True, ImageLayout("HW", 1, -1, -1)),
        ((-1, 28, 28), True, ImageLayout("HW", 1, 28, 28)),
        ((28, 28), None, ImageLayout("HW", 1, 28, 28)),
    ],
)
def test_layouts(shape: tuple[int, ...], batched: bool | None, expected: ImageLayout) -> None:
    assert layout(spec(*shape), ImageHints(batched)) == expected


@pytest.mark.parametrize("shape", [(-1, 64), (64,), (-1, 5, 224, 224), (-1, 2, 3, 4, 5), ()])
def test_no_shape_of_a_picture(shape: tuple[int, ...]) -> None:
    with pytest.raises(ModserveError, match=r"does not have the shape of a picture: height and width, .*\.npy"):
        layout(spec(*shape), ImageHints(True))


def test_a_shape_of_two_meanings() -> None:
    both = spec(-1, 3, 224, 3)
    with pytest.raises(ModserveError, match=r"may be CHW or HWC of a picture: '--layout' says which"):
        layout(both, ImageHints(True))
    assert layout(both, ImageHints(True, "HWC")) == ImageLayout("HWC", 3, 3, 224)


def png(width: int, height: int, *colour: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(buffer, "PNG")
    return buffer.getvalue()


RED = png(5, 2, 255, 0, 51)


def test_channels_first_and_resized() -> None:
    notes: list[str] = []
    array = decode("a.png", RED, spec(-1, 3, 8, 6), ImageHints(True), notes.append)
    assert (array.shape, array.dtype) == ((1, 3, 8, 6), np.uint8)
    assert array[0, :, 0, 0].tolist() == [255, 0, 51]
    assert notes == ["a.png: 5 x 2 RGB → 6 x 8 RGB, CHW"]


def test_channels_last_of_any_size() -> None:
    array = decode("a.png", RED, spec(-1, -1, 3, datatype=dtypes.INT32), ImageHints(False), lambda text: None)
    assert (array.shape, array.dtype, array[1, 3].tolist()) == ((2, 5, 3), np.int32, [255, 0, 51])


def test_grey() -> None:
    array = decode("a.png", png(4, 2, 7, 7, 7), spec(-1, -1, -1), ImageHints(True), lambda text: None)
    assert (array.shape, array[0, 0, 0]) == ((1, 2, 4), 7)


@pytest.mark.parametrize(
    ("pixels", "expected"),
    [
        ("bytes", [255, 0, 51]),
        ("unit", [1, 0, 0.2]),
        ("signed", [1, -1, -0.6]),
        ("imagenet", [(1 - 0.485) / 0.229, -0.456 / 0.224, (0.2 - 0.406) / 0.225]),
    ],
)
def test_pixels_as_numbers(pixels: str, expected: list[float]) -> None:
    array = decode(
        "a.png", RED, spec(-1, 3, 2, 5, datatype=dtypes.FP32), ImageHints(True, "", pixels), lambda text: None
    )
    assert array.dtype == np.float32
    assert array[0, :, 0, 0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("datatype", [dtypes.FP32, dtypes.FP16, dtypes.INT8, dtypes.BOOL])
def test_numbers_that_only_the_user_knows(datatype: Datatype) -> None:
    with pytest.raises(ModserveError, match="does not say how pixels become numbers: set '--pixels' to bytes"):
        decode("a.png", RED, spec(-1, 3, 2, 5, datatype=datatype), ImageHints(True), lambda text: None)


def test_imagenet_is_for_colours() -> None:
    with pytest.raises(ModserveError, match="is for pictures in colour"):
        decode("a.png", RED, spec(2, 4, datatype=dtypes.FP32), ImageHints(False, "", "imagenet"), lambda text: None)


def test_no_picture() -> None:
    with pytest.raises(ModserveError, match=r"a\.png is not a picture"):
        decode("a.png", b"nothing", spec(2, 4), ImageHints(), lambda text: None)


def test_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ModserveError, match=r"needs Pillow: pip install pillow"):
        decode("a.png", RED, spec(2, 4), ImageHints(), lambda text: None)
