"""Pictures as tensors, if the metadata and configuration of the model determine their layout."""

import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from modserve.core.errors import invalid
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Array

from .arguments import InputSpec, Shape

ORDERS = ("CHW", "HWC", "HW")
"""The order of a picture's dimensions: channels, height, width."""
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and deviation of ImageNet's red, green and blue."""


def _imagenet(pixels: Array) -> Array:
    if pixels.shape[-1] != 3:
        raise invalid("option '--pixels imagenet' is for pictures in colour")
    normal: Array = (pixels / 255 - np.array(_MEAN)) / np.array(_DEVIATION)
    return normal


PIXELS: Mapping[str, Callable[[Array], Array]] = {
    "bytes": lambda pixels: pixels,
    "unit": lambda pixels: pixels / 255,
    "signed": lambda pixels: pixels / 127.5 - 1,
    "imagenet": _imagenet,
}
"""Conversions of pixels to numbers, by value of ``--pixels``. Pixels are height, width, channels, from 0 to 255."""


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """The layout of a picture in an input. `height` and `width` are -1 if variable."""

    order: str
    channels: int
    height: int
    width: int


@dataclass(frozen=True, slots=True)
class ImageHints:
    """Information besides the metadata. `batched`: True if the first dimension is the batch."""

    batched: bool | None = None
    order: str = ""
    pixels: str = ""


def layouts(shape: Shape, hints: ImageHints) -> Iterator[ImageLayout]:
    """Yield the layouts that fit the shape."""
    seen = set()
    for dims in _without_batch(shape, hints.batched):
        for layout in _of(dims):
            if hints.order in ("", layout.order) and layout not in seen:
                seen.add(layout)
                yield layout


def _without_batch(shape: Shape, batched: bool | None) -> Iterator[Shape]:
    """Yield the dimensions of one picture: a fourth dimension is the batch."""
    if len(shape) == 4 or (batched is not False and len(shape) > 2 and shape[0] in (-1, 1)):
        yield shape[1:]
    if batched is not True and len(shape) < 4:
        yield shape


def _of(dims: Shape) -> Iterator[ImageLayout]:
    if len(dims) == 2:
        yield ImageLayout("HW", 1, *dims)
    elif len(dims) == 3:
        if dims[0] in _MODES:
            yield ImageLayout("CHW", dims[0], *dims[1:])
        if dims[2] in _MODES:
            yield ImageLayout("HWC", dims[2], *dims[:2])


def layout(spec: InputSpec, hints: ImageHints) -> ImageLayout:
    """Return the only layout of an input. Raises INVALID_ARG if there is none, or more than one."""
    possible = list(layouts(spec.shape, hints))
    if len(possible) == 1:
        return possible[0]
    if not possible:
        raise invalid(
            f"input '{spec}' does not have the shape of a picture: height and width, with 1, 3 or 4 channels before or "
            "after them; an .npy file can have any shape"
        )
    listed = " or ".join(each.order for each in possible)
    raise invalid(f"input '{spec}' may be {listed} of a picture: '--layout' says which")


def pixels(spec: InputSpec, hints: ImageHints) -> Callable[[Array], Array]:
    """Return the conversion of pixels to numbers. Raises INVALID_ARG if only the user can know it."""
    if hints.pixels:
        return PIXELS[hints.pixels]
    if spec.datatype is dtypes.UINT8 or (spec.datatype.json_kind == "int" and spec.datatype is not dtypes.INT8):
        return PIXELS["bytes"]
    raise invalid(
        f"input '{spec}' does not say how pixels become numbers: set '--pixels' to bytes (0 to 255), unit (0 to 1), "
        "signed (-1 to 1) or imagenet (ImageNet's normalization)"
    )


def decode(file: str, content: bytes, spec: InputSpec, hints: ImageHints, note: Callable[[str], None]) -> Array:
    """Decode a picture to a tensor: turned upright, resized, with the channels in place. Raises INVALID_ARG.

    `note` receives a description of the changes.
    """
    where, number = layout(spec, hints), pixels(spec, hints)
    image = _open(file, content)
    size = (image.width if where.width < 0 else where.width, image.height if where.height < 0 else where.height)
    before = f"{image.width} x {image.height} {image.mode}"
    image = image.convert(_MODES[where.channels])
    if image.size != size:
        image = image.resize(size)
    note(f"{file}: {before} → {size[0]} x {size[1]} {image.mode}, {where.order}")
    array = np.asarray(image)
    if array.ndim == 2:
        array = array[:, :, None]
    array = np.asarray(number(array.astype(np.float64)))
    made = {"HWC": array, "CHW": array.transpose(2, 0, 1), "HW": array[:, :, 0]}[where.order]
    made = made.astype(spec.datatype.numpy)
    return made if made.ndim == len(spec.shape) else made[None]


def _open(file: str, content: bytes) -> Any:
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError:
        raise invalid(f"reading {file} needs Pillow: pip install pillow; or make an .npy file of it") from None
    try:
        return ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        raise invalid(f"{file} is not a picture: {error}") from None
