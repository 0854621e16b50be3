"""The model.py of MLflow models, with models that need no MLflow."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import modserve.backends.mlflow
from modserve.backends.python.worker import triton_python_backend_utils as pb
from modserve.core.tensors.tensor import Array

TEXT = ("y", "TYPE_STRING", [1])
NUMBER = ("y", "TYPE_FP64", [1])


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", pb)
    path = Path(modserve.backends.mlflow.__file__).parent / "program" / "model.py"
    spec = importlib.util.spec_from_file_location("mlflow_program", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Calls:
    """A model that runs `function`, and remembers what it got."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function
        self.rows: list[Any] = []

    def predict(self, data: Any) -> Any:
        self.rows.append(data.tolist())
        return self.function(data)


def model(
    program: ModuleType,
    function: Callable[[Any], Any],
    output: tuple[str, str, list[int]] = NUMBER,
    inputs: Sequence[str] = ("x",),
    schema: Any = None,
    batches: bool = True,
) -> Any:
    made = program.TritonPythonModel()
    made.model, made.batches, made.outputs, made.inputs = Calls(function), batches, [output], list(inputs)
    made.schema, made.params, made.kinds = schema, [], program.kinds(schema, list(inputs))
    return made


def request(**arrays: Array) -> pb.InferenceRequest:
    tensors = [pb.Tensor(name, array) for name, array in arrays.items()]
    return pb.InferenceRequest(model_name="m", inputs=tensors, requested_output_names=["y"])


def shown(responses: Sequence[pb.InferenceResponse]) -> list[Any]:
    """The rows of each response, or its error."""
    texts = []
    for response in responses:
        error = response.error()
        texts.append(error.message() if error else response.output_tensors()[0].as_numpy().tolist())
    return texts


def column(*values: Any) -> Array:
    return np.array([[value] for value in values], object if isinstance(values[0], bytes) else np.float64)


def test_merged_requests_are_one_call(program: ModuleType) -> None:
    served = model(program, lambda rows: rows * 2)
    assert shown(served.execute([request(x=column(1)), request(x=column(2, 3))])) == [[[2]], [[4], [6]]]
    assert served.model.rows == [[[1], [2], [3]]]


def test_a_model_that_returns_another_number_of_rows(program: ModuleType) -> None:
    served = model(program, lambda rows: rows[rows[:, 0] > 0])
    responses = served.execute([request(x=column(-1, 5)), request(x=column(7)), request(x=column(-1))])
    first, second, third = shown(responses)
    assert "output 'y' has 1 rows for 2 rows of the inputs" in first
    assert second == [[7]]
    assert "output 'y' has 0 rows for 1 rows of the inputs" in third


@pytest.mark.parametrize(("rows", "result"), [(2, np.ones(6)), (2, np.float64(1)), (1, np.ones((2, 3)))])
def test_results_that_are_not_rows(program: ModuleType, rows: int, result: Any) -> None:
    served = model(program, lambda _: result, ("y", "TYPE_FP64", [3]))
    (text,) = shown(served.execute([request(x=np.zeros((rows, 1)))]))
    assert f"rows for {rows} rows of the inputs" in text


@pytest.mark.parametrize("result", [np.ones(3), np.ones((1, 3)), [[1.0, 1.0, 1.0]]])
def test_one_row_may_lack_its_first_dimension(program: ModuleType, result: Any) -> None:
    served = model(program, lambda _: result, ("y", "TYPE_FP64", [3]))
    assert shown(served.execute([request(x=column(0))])) == [[[1, 1, 1]]]


def test_a_model_that_does_not_batch_returns_what_it_likes(program: ModuleType) -> None:
    served = model(program, lambda rows: rows.sum(0), batches=False)
    assert shown(served.execute([request(x=column(1, 2))])) == [[3]]


def test_a_bad_request_fails_alone(program: ModuleType) -> None:
    def upper(rows: Any) -> Any:
        if "bad" in rows[:, 0]:
            raise ValueError("a value is bad")
        return np.array([[text.upper()] for text in rows[:, 0]])

    served = model(program, upper, TEXT)
    requests = [request(x=column(text)) for text in (b"a", b"\xff", b"bad", "ü".encode())]
    responses = served.execute(requests)
    first, second, third, fourth = shown(responses)
    assert (first, fourth) == ([[b"A"]], [["Ü".encode()]])
    assert second.startswith("input 'x' holds bytes that are not UTF-8")
    assert responses[1].error().code() == pb.TritonError.INVALID_ARG
    assert third == "the MLflow model failed: ValueError: a value is bad"


@pytest.mark.parametrize("objects", [False, True])
def test_dates_are_iso_8601(program: ModuleType, objects: bool) -> None:
    dates: Any = np.array([["2024-02-29T01:02:03.5"]], "datetime64[ms]")
    if objects:
        dates = dates.astype(object)
    (rows,) = shown(model(program, lambda _: dates, TEXT).execute([request(x=column(0))]))
    assert rows[0][0] in (b"2024-02-29T01:02:03.500", b"2024-02-29T01:02:03.500000")
    days = np.array(["2024-02-29", "NaT"], "datetime64[ns]")
    (rows,) = shown(model(program, lambda _: days, TEXT).execute([request(x=column(0, 0))]))
    assert rows == [[b"2024-02-29T00:00:00.000000000"], [b"NaT"]]


def test_several_wide_inputs_need_a_signature(program: ModuleType) -> None:
    served = model(program, lambda rows: rows, inputs=("x", "wide"))
    responses = served.execute([request(x=column(1), wide=np.ones((1, 2)))])
    (text,) = shown(responses)
    assert "input 'wide' has the shape [1, 2]" in text
    assert "needs a signature" in text
    assert responses[0].error().code() == pb.TritonError.INVALID_ARG


class Columns:
    """A schema of MLflow, of columns."""

    def __init__(self, kinds: Sequence[str], names: Sequence[str] = ()) -> None:
        self.inputs = [SimpleNamespace(type=SimpleNamespace(name=kind)) for kind in kinds]
        self.names = list(names)

    def is_tensor_spec(self) -> bool:
        return False

    def has_input_names(self) -> bool:
        return bool(self.names)

    def input_names(self) -> list[str]:
        return self.names


@pytest.mark.parametrize("names", [(), ("x", "text")])
def test_binary_columns_stay_bytes(program: ModuleType, names: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    frames: list[Any] = []

    def frame(arrays: Any) -> Array:
        frames.append({name: array.ravel().tolist() for name, array in arrays.items()})
        return column(0.0)

    monkeypatch.setattr(program, "frame", frame)
    served = model(program, lambda rows: rows, inputs=("x", "text"), schema=Columns(["binary", "string"], names))
    # In another order than that of the columns
    assert shown(served.execute([request(text=column(b"a"), x=column(b"\xff"))])) == [[[0]]]
    assert frames == [dict(zip(names or (0, 1), [[b"\xff"], ["a"]], strict=True))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-02-29", "2024-02-29T00:00:00"),
        ("2024-02-29 01:02", "2024-02-29T01:02:00"),
        ("2024-02-29T01:02:03.5", "2024-02-29T01:02:03.5"),
        ("2024-02-29T01:02:03.123456789Z", "2024-02-29T01:02:03.123456789"),
        ("2024-02-29T01:02:03+05:30", "2024-02-28T19:32:03"),
        ("2024-02-29T01:02:03-0100", "2024-02-29T02:02:03"),
        ("NaT", "NaT"),
    ],
)
def test_columns_of_dates(program: ModuleType, text: str, expected: str) -> None:
    (value,) = program.convert("x", column(text.encode()), "datetime").ravel()
    assert value.dtype == "datetime64[ns]"
    assert str(value) == str(np.datetime64(expected, "ns"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("today", "'today' is none"),
        ("29.2.2024", "'29.2.2024' is none"),
        ("2023-02-29", "Day out of range"),
        ("1600-01-01", "'1600-01-01' is too long ago or too far ahead"),
    ],
)
def test_what_is_no_date(program: ModuleType, text: str, why: str) -> None:
    served = model(program, lambda rows: rows, schema=Columns(["datetime"]))
    responses = served.execute([request(x=column(text.encode()))])
    (error,) = shown(responses)
    assert error.startswith("input 'x' is of dates: ")
    assert why in error
    assert "such as 2024-02-29 or" in error
    assert responses[0].error().code() == pb.TritonError.INVALID_ARG


class Tensors(Columns):
    """A schema of MLflow, of tensors without names."""

    def __init__(self, *kinds: str) -> None:
        self.inputs = [SimpleNamespace(type=np.dtype(kind)) for kind in kinds]
        self.names = []

    def is_tensor_spec(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("kind", "value", "dtype", "expected"),
    [("S", b"a\xff", "S2", b"a\xff"), ("U", "é".encode(), "U1", "é"), ("O", "é".encode(), "O", "é")],
)
def test_tensors_of_bytes_and_texts(program: ModuleType, kind: str, value: bytes, dtype: str, expected: object) -> None:
    types: list[Any] = []

    def function(rows: Any) -> Array:
        types.append(rows.dtype)
        return column(0.0)

    served = model(program, function, schema=Tensors(kind))
    assert shown(served.execute([request(x=column(value))])) == [[[0]]]
    assert types == [np.dtype(dtype)]
    assert served.model.rows == [[[expected]]]
