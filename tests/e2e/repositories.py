"""Model repositories for the end-to-end tests."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import onnx
from onnx import TensorProto, helper

EXAMPLES = Path(__file__).parents[2] / "model_repository"
HELD = {
    "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parent / "held_plugin"), os.getenv("PYTHONPATH")]))
}
"""The environment of a server with models of `write_held`."""

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
    backend: str = "identity",
) -> None:
    """A model that gives back what it gets: INPUT0 of dims [-1], at most 8 of them in a batch, one instance."""
    kind = CONFIG_TYPES[datatype]
    lines = [
        f'backend: "{backend}"',
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


class Gate:
    """Where a test says how far a model of `write_held` may go."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def let_load(self) -> None:
        (self._directory / "loads").touch()

    def open(self) -> None:
        """What runs goes on, and so does what comes."""
        (self._directory / "runs").touch()

    def shut(self) -> None:
        """What begins from now on runs until the gate opens."""
        (self._directory / "runs").unlink(missing_ok=True)

    def stick(self) -> None:
        """The engine does not close any more."""
        (self._directory / "stuck").touch()

    @property
    def begun(self) -> int:
        """How many executions have begun."""
        return (self._directory / "begun").stat().st_size


def write_held(
    repository: Path,
    name: str,
    *,
    parameters: Mapping[str, object] | None = None,
    extra: str = "",
    loads: bool = True,
) -> Gate:
    """As `write_identity`, on a server with the environment `HELD`: what runs does so until the gate opens.

    It loads at once, or when it is let.
    """
    write_identity(repository, name, parameters=parameters, extra=extra, backend="held")
    directory = repository / name / "gate"
    directory.mkdir()
    (directory / "begun").touch()
    gate = Gate(directory)
    if loads:
        gate.let_load()
    return gate


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


_SEQUENCE_CONTROLS = """
control_input [
  { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
  { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } ] },
  { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: %s } ] }
]
"""


def write_sequence_echo(repository: Path, name: str, strategy: str, *, id_type: str = "UINT64") -> None:
    """Gives back what it is told in each row: OUTPUT (its INPUT, INT32 [1]), and as SAW_… its controls."""
    told = {"INPUT": "INT32", "START": "INT32", "READY": "INT32", "CORRID": id_type}
    outputs = {tensor: "OUTPUT" if tensor == "INPUT" else f"SAW_{tensor}" for tensor in told}
    graph = helper.make_graph(
        [helper.make_node("Identity", [tensor], [outputs[tensor]]) for tensor in told],
        name,
        [helper.make_tensor_value_info(tensor, ONNX_TYPES[kind], ["batch", 1]) for tensor, kind in told.items()],
        [
            helper.make_tensor_value_info(outputs[tensor], ONNX_TYPES[kind], ["batch", 1])
            for tensor, kind in told.items()
        ],
    )
    controls = _SEQUENCE_CONTROLS % CONFIG_TYPES[id_type]
    _write_graph(repository, name, graph, f"sequence_batching {{ {strategy} {controls} }}")


def write_accumulator(repository: Path, name: str, strategy: str, more: str = "", initial: str = "") -> None:
    """OUTPUT is the sum of a sequence's INPUTs (INT32 [1]) so far, kept as a state, which may begin as `initial`."""
    tensors = [helper.make_tensor_value_info(tensor, TensorProto.INT32, ["batch", 1]) for tensor in ("INPUT", "SUM")]
    results = [
        helper.make_tensor_value_info(tensor, TensorProto.INT32, ["batch", 1]) for tensor in ("OUTPUT", "SUM_OUT")
    ]
    graph = helper.make_graph(
        [helper.make_node("Add", ["INPUT", "SUM"], ["OUTPUT"]), helper.make_node("Identity", ["OUTPUT"], ["SUM_OUT"])],
        name,
        tensors,
        results,
    )
    state = f'state [ {{ input_name: "SUM" output_name: "SUM_OUT" data_type: TYPE_INT32 dims: [ 1 ] {initial} }} ]'
    _write_graph(repository, name, graph, f"sequence_batching {{ {strategy} {state} {more} }}")


def write_text_keeper(repository: Path, name: str, more: str = "") -> None:
    """OUTPUT (BYTES [-1]) is all that the sequence was given so far, one after the other: a growing state."""
    tensors = [helper.make_tensor_value_info(tensor, TensorProto.STRING, [None]) for tensor in ("INPUT", "KEPT")]
    results = [helper.make_tensor_value_info(tensor, TensorProto.STRING, [None]) for tensor in ("OUTPUT", "KEPT_OUT")]
    graph = helper.make_graph(
        [
            helper.make_node("Concat", ["KEPT", "INPUT"], ["OUTPUT"], axis=0),
            helper.make_node("Identity", ["OUTPUT"], ["KEPT_OUT"]),
        ],
        name,
        tensors,
        results,
    )
    initial = 'initial_state: { name: "first" data_type: TYPE_STRING dims: [ 1 ] data_file: "first" }'
    state = (
        'state [ { input_name: "KEPT" output_name: "KEPT_OUT" data_type: TYPE_STRING dims: [ -1 ] '
        f"use_same_buffer_for_input_output: true use_growable_memory: true {initial} }} ]"
    )
    # Were these left to completion, the variable dimension would be taken for that of a batch.
    given = " ".join(
        f'{side} {{ name: "{side.upper()}" data_type: TYPE_STRING dims: [ -1 ] }}' for side in ("input", "output")
    )
    config = f"{given} sequence_batching {{ direct {{ }} {state} {more} }}"
    _write_graph(repository, name, graph, config, max_batch_size=0)
    (repository / name / "initial_state").mkdir()
    (repository / name / "initial_state" / "first").write_bytes(b"\x05\0\0\0first")


def _write_graph(repository: Path, name: str, graph: onnx.GraphProto, config: str, max_batch_size: int = 4) -> None:
    """One instance; the inputs and outputs are completed."""
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    (repository / name / "1").mkdir(parents=True)
    onnx.save(model, repository / name / "1" / "model.onnx")
    groups = "instance_group [ { count: 1 kind: KIND_CPU } ]"
    (repository / name / "config.pbtxt").write_text(f"max_batch_size: {max_batch_size}\n{groups}\n{config}")
