"""The ten mistakes of docs/configuration.md, each with a picture of what `modserve check` prints.

    python scripts/config_mistakes.py

makes a small model repository for each, runs the command on it, and writes the pictures and the section of the page
anew. tests/unit/commands/test_config_mistakes.py and tests/e2e/test_mistakes_loaded.py compare them.
"""

import io
import os
import textwrap
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import terminal

from modserve import cli

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "configuration.md"
PICTURES = ROOT / "docs" / "configuration"
BEGIN = "<!-- mistakes: scripts/config_mistakes.py -->\n"
END = "<!-- End of the ten mistakes. -->\n"
_EXAMPLES = ROOT / "model_repository"
DIGITS, RESIZE = _EXAMPLES / "digits" / "1" / "model.onnx", _EXAMPLES / "digits_resize" / "1" / "model.onnx"
"""Models that lie in the repositories: of pictures as 64 numbers to digits, and of any pictures to such."""


@dataclass(frozen=True)
class Mistake:
    name: str
    """The picture's."""
    title: str
    files: Mapping[str, str | Path]
    """The files in the repository: texts, and copies of files."""
    load: bool = False
    """Whether only the engine can tell."""
    remedy: str = ""
    """What the message does not say."""

    @property
    def command(self) -> str:
        return "modserve check models" + (" --load" if self.load else "")

    @property
    def picture(self) -> Path:
        return PICTURES / f"{self.name}.svg"


MISTAKES = (
    Mistake(
        "data_type",
        "Another name for a data type",
        {
            "resnet50/config.pbtxt": """\
backend: "onnxruntime"
max_batch_size: 8
input [
  {
    name: "image"
    data_type: TYPE_FLOAT32
    dims: [ 3, 224, 224 ]
  }
]
output [
  {
    name: "classes"
    data_type: BYTES
    dims: [ 5 ]
  }
]
""",
            "resnet50/1/model.onnx": DIGITS,
        },
    ),
    Mistake(
        "punctuation",
        "A missing comma or bracket",
        {
            "detector/config.pbtxt": """\
backend: "onnxruntime"
input [
  { name: "image" data_type: TYPE_UINT8 dims: [ 1, -1, -1 3 ] }
]
output [
  { name: "boxes" data_type: TYPE_FP32 dims: [ 1, 100, 4 ] }
  { name: "scores" data_type: TYPE_FP32 dims: [ 1, 100 ] }
]
dynamic_batching {
  max_queue_delay_microseconds: 500
instance_group [ { count: 2 } ]
""",
            "detector/1/model.onnx": DIGITS,
        },
    ),
    Mistake(
        "template",
        "An unfilled template",
        {
            "postprocessing/config.pbtxt": """\
backend: "python"
max_batch_size: ${triton_max_batch_size}
dynamic_batching {
  max_queue_delay_microseconds: ${max_queue_delay_microseconds}
}
instance_group [ { count: ${postprocessing_instance_count} kind: KIND_CPU } ]
""",
            "postprocessing/1/model.py": "",
        },
    ),
    Mistake(
        "field",
        "A misspelt field",
        {
            "classifier/config.pbtxt": """\
backend: "onnxruntime"
max_batchsize: 8
inputs [ { name: "image" dtype: TYPE_FP32 shape: [ 64 ] } ]
instance_groups [ { count: 2 kind: CPU } ]
dynamic_batching { max_batch_size: 8 }
""",
            "classifier/1/model.onnx": DIGITS,
        },
    ),
    Mistake(
        "name",
        "The old name in a copied folder",
        {
            "resnet50_int8/config.pbtxt": 'name: "resnet50"\nbackend: "onnxruntime"\n',
            "resnet50_int8/1/model.onnx": DIGITS,
        },
    ),
    Mistake(
        "version",
        "No version folder",
        {
            "diabetes/config.pbtxt": 'backend: "onnxruntime"\nmax_batch_size: 0\n',
            "diabetes/model.onnx": DIGITS,
        },
    ),
    Mistake(
        "gpu",
        "A missing GPU",
        {
            "resnet50/config.pbtxt": """\
backend: "onnxruntime"
instance_group [
  {
    count: 1
    kind: KIND_GPU
    gpus: [ 0 ]
  }
]
""",
            "resnet50/1/model.onnx": DIGITS,
        },
        remedy="[Engines on GPUs](engines/gpu.md)",
    ),
    Mistake(
        "batch",
        "A duplicate batch dimension",
        {
            "digits/config.pbtxt": """\
backend: "onnxruntime"
max_batch_size: 32
input [ { name: "image" data_type: TYPE_FP32 dims: [ -1, 64 ] } ]
output [ { name: "probabilities" data_type: TYPE_FP32 dims: [ 10 ] } ]
""",
            "digits/1/model.onnx": DIGITS,
        },
        load=True,
    ),
    Mistake(
        "tensor",
        "A tensor unknown to the model",
        {
            "digits/config.pbtxt": """\
backend: "onnxruntime"
max_batch_size: 32
input [ { name: "image" data_type: TYPE_UINT8 dims: [ 64 ] } ]
output [ { name: "output_0" data_type: TYPE_FP32 dims: [ 10 ] } ]
""",
            "digits/1/model.onnx": DIGITS,
        },
        load=True,
    ),
    Mistake(
        "ensemble",
        "Unconnected steps",
        {
            "pipeline/config.pbtxt": """\
platform: "ensemble"
max_batch_size: 32
input [ { name: "picture" data_type: TYPE_UINT8 dims: [ -1, -1 ] } ]
output [ { name: "digit" data_type: TYPE_INT64 dims: [ 1 ] } ]
ensemble_scheduling {
  step [
    {
      model_name: "digits_resize"
      model_version: -1
      input_map { key: "picture" value: "picture" }
      output_map { key: "image" value: "small_image" }
    },
    {
      model_name: "digits"
      model_version: -1
      input_map { key: "image" value: "small_images" }
      output_map { key: "label" value: "digit" }
    }
  ]
}
""",
            "pipeline/1/.keep": "",
            "digits_resize/1/model.onnx": RESIZE,
            "digits/1/model.onnx": DIGITS,
        },
        remedy="`key` is the tensor's name in the step's model.",
    ),
)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def said(mistake: Mistake) -> str:
    """What the command prints on a terminal, with colours. Loads the model if the mistake needs that."""
    with TemporaryDirectory() as folder, redirect_stdout(_Terminal()) as screen, patch.dict(os.environ):
        for name in [name for name in os.environ if name == "NO_COLOR" or name.startswith("MODSERVE_")]:
            del os.environ[name]
        os.environ |= {"TERM": "xterm", "CUDA_VISIBLE_DEVICES": ""}
        models = Path(folder) / "models"
        for name, content in mistake.files.items():
            path = models / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content.read_bytes())
        cli.main(["check", str(models), *(["--load"] if mistake.load else [])])
        return screen.getvalue().replace(f"{folder}/", "")


def draw(mistake: Mistake, screen: str) -> str:
    """The picture of a terminal: the command, and what it has printed."""
    return terminal.draw(mistake.title, [(mistake.command, screen)])


# The page


def section() -> str:
    """The section of the page: the pictures, with what they show."""
    parts = []
    for mistake in MISTAKES:
        parts.append(f"![{mistake.title}](configuration/{mistake.picture.name})\n")
        if mistake.remedy:
            parts.append(f"{_filled(mistake.remedy)}\n")
    return "\n".join(["", *parts, ""])


def _filled(text: str) -> str:
    return textwrap.fill(text, 130, break_on_hyphens=False, break_long_words=False)


def renewed(page: str) -> str:
    """The page with the section as it should be."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}{section()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    for each in MISTAKES:
        each.picture.write_text(draw(each, said(each)), "utf-8")
    PAGE.write_text(renewed(PAGE.read_text("utf-8")), "utf-8")
