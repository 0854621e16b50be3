"""Real networks give the same on every engine that is installed, whichever form they come in: one server runs them all.

The reference is ONNX Runtime. Engines that are not installed are left out.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
from engine_rows import FORMS, NETWORKS, REFERENCES, ROWS, Row
from model_packages import place
from numpy.typing import NDArray
from server_process import LOADED, ServerProcess, started
from wire import HOST

LOAD_SECONDS = 120.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("engines")
    for row in ROWS:
        if not row.can_run:
            continue
        place(FORMS[row.form].path(), repository / row.model, row.config(), FORMS[row.form].filename)
    # The first full garbage collection visits all that PyTorch has made at its import: 0.14 s on two busy cores.
    with started(repository) as running:
        running.wait_for(LOADED, LOAD_SECONDS)
        yield running
        running.stop()


def run(server: ServerProcess, row: Row) -> Mapping[str, NDArray[Any]]:
    """What a model makes of its network's inputs, by the names that ONNX has."""
    network, names = NETWORKS[row.network], FORMS[row.form].names
    inputs = []
    for name, array in network.arrays().items():
        datatype = {"float32": "FP32", "int64": "INT64", "int32": "INT32"}[str(array.dtype)]
        tensor = grpc.InferInput(names.get(name, name), list(array.shape), datatype)
        inputs.append(tensor.set_data_from_numpy(array))
    with grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
        result = client.infer(row.model, inputs)
    return {name: result.as_numpy(names.get(name, name)) for name in network.outputs}


def difference(row: Row, actual: NDArray[Any], expected: NDArray[Any]) -> float:
    """As `Row.tolerance` has it."""
    assert actual.shape == expected.shape
    wrong = actual - expected
    if row.precision == "fp32":
        return float(np.abs(wrong).max() / np.abs(expected).max())
    return float(np.linalg.norm(wrong) / np.linalg.norm(expected))


@pytest.mark.parametrize("row", [row for row in ROWS if row not in REFERENCES.values()], ids=lambda row: row.model)
def test_an_engine_agrees_with_the_reference(server: ServerProcess, row: Row) -> None:
    if not row.can_run:
        pytest.skip(f"{row.engine}, or what its model is made with, is not installed")
    actual, expected = run(server, row), run(server, REFERENCES[row.network])
    differences = {name: difference(row, actual[name], expected[name]) for name in expected}
    assert max(differences.values()) < row.tolerance, differences


def test_the_reference_hears_chords(server: ServerProcess) -> None:
    """So that engines agree about more than zeros: the notes that sound longest, 21 being a piano's lowest key."""
    notes = run(server, REFERENCES["basic_pitch"])["StatefulPartitionedCall:1"].mean(axis=1)
    chords = [{57, 61, 64}, {55, 59, 62, 67}]
    for row, chord in zip(notes, chords, strict=True):
        assert chord <= {21 + int(key) for key in np.argsort(row)[-6:]}


def test_the_references_see_a_line_and_which_way_up_it_is(server: ServerProcess) -> None:
    if not REFERENCES["orientation"].can_run:
        pytest.skip("what the models are made with is not installed")
    probabilities = run(server, REFERENCES["orientation"])["probabilities"]
    assert probabilities.argmax(axis=1).tolist() == [0, 1]
    assert run(server, REFERENCES["detector"])["text_map"].max() > 0.9
