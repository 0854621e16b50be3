"""Model repositories for the end-to-end tests."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import onnx
from onnx import TensorProto, helper

EXAMPLES = Path(__file__).parents[2] / "model_repository"

CONFIG_TYPES = {
    "BOOL": "TYPE_BOOL",
    "UINT8": "TYPE_UINT8",
    "UINT16": "TYPE_UINT16",
    "UINT32": "TYPE_UINT32",
    "UINT64": "TYPE_UINT64",
    "INT8": "TYPE_INT8",
    "INT16": "TYPE_INT16",
    "INT32": "TYPE_INT32",
    "INT64": "TYPE_INT64",
    "FP16": "TYPE_FP16",
    "BF16": "TYPE_BF16",
    "FP32": "TYPE_FP32",
    "FP64": "TYPE_FP64",
    "BYTES": "TYPE_STRING",
}
ONNX_TYPES = {
    **{name: getattr(TensorProto, name) for name in CONFIG_TYPES if hasattr(TensorProto, name)},
    "FP16": TensorProto.FLOAT16,
    "BF16": TensorProto.BFLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
}


def write_identity(
    repository: Path,
    name: str,
    datatype: str = "INT32",
    *,
    parameters: Mapping[str, object] | None = None,
    extra: str = "",
) -> None:
    """A model that gives back what it gets: INPUT0 of dims [-1], at most 8 of them in a batch, one instance."""
    kind = CONFIG_TYPES[datatype]
    lines = [
        'backend: "identity"',
        "max_batch_size: 8",
        f'input [ {{ name: "INPUT0" data_type: {kind} dims: [ -1 ] }} ]',
        f'output [ {{ name: "OUTPUT0" data_type: {kind} dims: [ -1 ] }} ]',
        "instance_group [ { count: 1 kind: KIND_CPU } ]",
        extra,
        *(
            f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
            for key, value in (parameters or {}).items()
        ),
    ]
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text("\n".join(lines))


def write_onnx_identity(repository: Path, name: str, datatype: str) -> None:
    """The same as an ONNX file without a configuration: the server completes it."""
    kind = ONNX_TYPES[datatype]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])],
        name,
        [helper.make_tensor_value_info("INPUT0", kind, ["batch", "width"])],
        [helper.make_tensor_value_info("OUTPUT0", kind, ["batch", "width"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    (repository / name / "1").mkdir(parents=True)
    onnx.save(model, repository / name / "1" / "model.onnx")


def copy_example(repository: Path, example: str, name: str, extra: str = "", drop: str = "") -> None:
    """An example model under another name, with more configuration, and without the block `drop`."""
    shutil.copytree(EXAMPLES / example, repository / name)
    config = repository / name / "config.pbtxt"
    text = config.read_text().replace(f'name: "{example}"', f'name: "{name}"')
    if drop:
        head, _, rest = text.partition(f"{drop} {{")
        text = head + rest.partition("}")[2]
    config.write_text(f"{text}\n{extra}")
