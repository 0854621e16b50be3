"""Mistakes that people make in model repositories: what the command says of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

EXAMPLES = Path(__file__).parents[3] / "model_repository"
MODEL = (EXAMPLES / "simple" / "1" / "model.onnx").read_bytes()
"""INPUT0, INPUT1 → OUTPUT0, OUTPUT1: INT32 [-1, 16]."""


class Mistake(NamedTuple):
    title: str
    files: Mapping[str, str | bytes]
    """What lies in model_repository."""
    options: tuple[str, ...] = ()
    code: int = 1
    output: str = ""
    """What the command prints."""


MISTAKES = (
    Mistake(
        "Misspelt names and values of the wrong type",
        {
            "resnet/config.pbtxt": """\
backend: "onnxruntime"
max_batchsize: 8
input [
  { name: "IMAGE"  data_type: FP32  dims: [ 3, 224 224 ] }
]
instance_group [ { count: "two" } ]
""",
            "resnet/1/model.onnx": MODEL,
        },
        output=(
            "model_repository/resnet/config.pbtxt:2:1: error: unknown field 'max_batchsize'; did you mean "
            "'max_batch_size'?\n"
            "    max_batchsize: 8\n"
            "    ^\n"
            "model_repository/resnet/config.pbtxt:4:31: error: unknown value 'FP32' for 'data_type'; did you "
            "mean 'TYPE_FP32'?\n"
            '    { name: "IMAGE"  data_type: FP32  dims: [ 3, 224 224 ] }\n'
            "                                ^\n"
            "model_repository/resnet/config.pbtxt:4:52: error: expected ',' or ']' in the list of 'dims', found "
            "the number 224\n"
            '    { name: "IMAGE"  data_type: FP32  dims: [ 3, 224 224 ] }\n'
            "                                                     ^\n"
            "model_repository/resnet/config.pbtxt:6:27: error: 'count' takes an integer, found the string \"two\"\n"
            '    instance_group [ { count: "two" } ]\n'
            "                              ^\n"
            "\n"
            "1 model checked: 4 problems in 1 model\n"
        ),
    ),
    Mistake(
        "A missing closing bracket",
        {
            "simple/config.pbtxt": """\
backend: "onnxruntime"
dynamic_batching {
  max_queue_delay_microseconds: 500
max_batch_size: 8
""",
            "simple/1/model.onnx": MODEL,
        },
        output=(
            "model_repository/simple/config.pbtxt:2:18: error: '{' is never closed with '}'\n"
            "    dynamic_batching {\n"
            "                     ^\n"
            "\n"
            "1 model checked: 1 problem in 1 model\n"
        ),
    ),
    Mistake(
        "A copied folder with the old name inside",
        {"simple_v2/config.pbtxt": 'name: "simple"\nbackend: "onnxruntime"\n', "simple_v2/1/model.onnx": MODEL},
        output=(
            "model_repository/simple_v2/config.pbtxt:1:1: error: unexpected directory name 'simple_v2' for model "
            "'simple', directory name must equal model name; write name: \"simple_v2\", or leave the name out\n"
            '    name: "simple"\n'
            "    ^\n"
            "\n"
            "1 model checked: 1 problem in 1 model\n"
        ),
    ),
    Mistake(
        "A model file with another name",
        {"resnet/config.pbtxt": 'backend: "onnxruntime"\n', "resnet/1/resnet50.onnx": MODEL},
        output=(
            "model_repository/resnet: error: unable to find model file 'model_repository/resnet/1/model.onnx' for "
            "model 'resnet'\n"
            "    'model_repository/resnet/1' holds: resnet50.onnx\n"
            "    rename '1/resnet50.onnx' to '1/model.onnx', or write default_model_filename: \"resnet50.onnx\" into "
            "config.pbtxt\n"
            "\n"
            "1 model checked: 1 problem in 1 model\n"
        ),
    ),
    Mistake(
        "A version that is not a number",
        {"resnet/config.pbtxt": 'backend: "onnxruntime"\n', "resnet/v1/model.onnx": MODEL},
        output=(
            "model_repository/resnet/config.pbtxt: error: at least one version must be available under the version "
            "policy of model 'resnet'\n"
            "    'model_repository/resnet' holds: config.pbtxt, v1/ (model.onnx)\n"
            "    folder 'v1' is not a version: versions are named by whole numbers, such as '1'\n"
            "\n"
            "1 model checked: 1 problem in 1 model\n"
        ),
    ),
    Mistake(
        "Weights that Git LFS has not fetched",
        {
            "resnet/1/model.onnx": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 102442450\n",
        },
        output=(
            "model_repository/resnet: error: 'model_repository/resnet/1/model.onnx' is not a model: it is the "
            "pointer of Git LFS to a file that was not fetched: run 'git lfs pull' where the files come from\n"
            "\n"
            "1 model checked: 1 problem in 1 model\n"
        ),
    ),
    Mistake(
        "A missing backend",
        {"llama/config.pbtxt": 'backend: "tensorrtllm"\n', "llama/1/config.json": b"{}"},
        output=(
            "model_repository/llama/config.pbtxt:1:1: error: unable to find backend 'tensorrtllm', "
            "installed backends are: …\n"
            '    backend: "tensorrtllm"\n'
            "    ^\n"
            "    language models run on backend 'openvino_genai' (GGUF files, OpenVINO IR), or 'vllm' (model.json)\n"
            "\n"
            "1 model checked: 1 problem in 1 model\n"
        ),
    ),
    Mistake(
        "Batches larger than the model's",
        {
            "simple/config.pbtxt": """\
backend: "onnxruntime"
max_batch_size: 8
dynamic_batching {
  preferred_batch_size: [ 4, 8, 16 ]
}
""",
            "simple/1/model.onnx": MODEL,
        },
        output=(
            "model_repository/simple/config.pbtxt:4:33: error: dynamic batching preferred size must be <= max "
            "batch size for simple: 16 > 8\n"
            "    preferred_batch_size: [ 4, 8, 16 ]\n"
            "                                  ^\n"
            "\n"
            "1 model checked: 1 problem in 1 model\n"
        ),
    ),
    Mistake(
        "An ensemble with a missing model",
        {
            "pipeline/config.pbtxt": """\
platform: "ensemble"
max_batch_size: 8
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 16 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 16 ] } ]
ensemble_scheduling {
  step [ {
    model_name: "simpel"
    model_version: -1
    input_map { key: "INPUT0" value: "IN" }
    input_map { key: "INPUT1" value: "IN" }
    output_map { key: "OUTPUT0" value: "OUT" }
  } ]
}
""",
            "pipeline/1/.keep": b"",
            "simple/1/model.onnx": MODEL,
        },
        output=(
            "model_repository/pipeline/config.pbtxt:7:5: error: ensemble pipeline contains models that are not "
            "available or ambiguous: simpel; did you mean 'simple'?\n"
            '    model_name: "simpel"\n'
            "    ^\n"
            "\n"
            "2 models checked: 1 problem in 1 model\n"
        ),
    ),
    Mistake(
        "The batch dimension among the dims",
        {
            "simple/config.pbtxt": """\
backend: "onnxruntime"
max_batch_size: 8
input [
  { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1, 16 ] },
  { name: "INPUT_1" data_type: TYPE_FP32 dims: [ 16 ] }
]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 16 ] } ]
""",
            "simple/1/model.onnx": MODEL,
        },
        ("--load",),
        output=(
            "model_repository/simple/config.pbtxt:4:42: error: model 'simple', tensor 'INPUT0': the model "
            "expects 2 dimensions (shape [-1,16]) but the model configuration specifies 3 dimensions (an initial "
            "batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making complete "
            "shape [-1,-1,16]); max_batch_size adds the batch dimension, so leave it out: dims: [ 16 ]\n"
            '    { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1, 16 ] },\n'
            "                                           ^\n"
            "model_repository/simple/config.pbtxt:5:5: error: unexpected inference input 'INPUT_1', allowed "
            "inputs are: INPUT0, INPUT1\n"
            '    { name: "INPUT_1" data_type: TYPE_FP32 dims: [ 16 ] }\n'
            "      ^\n"
            "\n"
            "1 model loaded: 2 problems in 1 model\n"
        ),
    ),
    Mistake(
        "Settings without effect",
        {
            "simple/config.pbtxt": """\
backend: "onnxruntime"
optimization {
  cuda { graphs: true }
  priority: PRIORITY_MAX
}
""",
            "simple/1/model.onnx": MODEL,
        },
        code=0,
        output=(
            "model_repository/simple/config.pbtxt:3:3: note: 'optimization.cuda' is ignored by this version of "
            "modserve: no CUDA graphs are captured\n"
            "    cuda { graphs: true }\n"
            "    ^\n"
            "model_repository/simple/config.pbtxt:4:3: note: 'optimization.priority' is ignored by this version of "
            "modserve: all models have the same priority\n"
            "    priority: PRIORITY_MAX\n"
            "    ^\n"
            "\n"
            "1 model checked: no problems, 2 notes (files read, nothing loaded; --load loads)\n"
        ),
    ),
    Mistake(
        "A misspelt argument of vLLM",
        {"llama/config.pbtxt": 'backend: "vllm"\n', "llama/1/model.json": b'{"modle": "/models/llama"}'},
        output=(
            "model_repository/llama: error: 'model_repository/llama/1/model.json' does not have the arguments of "
            'vLLM\'s engine: expected an object with "model": the folder of the weights, '
            "or their name at Hugging Face; it has 'modle': did you mean 'model'?\n"
            "\n"
            "1 model checked: 1 problem in 1 model\n"
        ),
    ),
)


def write(directory: Path, files: Mapping[str, str | bytes]) -> None:
    """The files below `directory`."""
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
