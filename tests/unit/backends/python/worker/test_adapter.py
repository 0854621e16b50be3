"""Decorated functions and classes run as model.py files do, with requests that are made here."""

import asyncio
import json
import types
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from modserve.backends.python.worker import host
from modserve.backends.python.worker import model as python_model
from modserve.backends.python.worker.adapter import of_module
from modserve.backends.python.worker.decorator import Context, InvalidInputError, Spec, definition_of, model
from modserve.backends.python.worker.errors import ErrorCode, ModelError, TritonError
from modserve.backends.python.worker.model_config import ModelConfig
from modserve.backends.python.worker.request import InferenceRequest
from modserve.backends.python.worker.response import InferenceResponse
from modserve.backends.python.worker.tensor import Tensor

Rows = Annotated[NDArray[np.float32], Spec(shape=[2])]


class Recorder:
    """Stands for the server: a host that keeps log lines, and the handle of a request that keeps responses."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.responses: list[InferenceResponse | None] = []
        self.ended = False
        self.cancelled_after = 1_000_000

    def log(self, level: str, message: str) -> None:
        self.lines.append(f"{level} {message}")

    def send(self, response: InferenceResponse | None, final: bool) -> None:
        assert not self.ended
        self.responses.append(response)
        self.ended = final

    def is_cancelled(self) -> bool:
        return len(self.responses) >= self.cancelled_after

    def is_paused(self) -> bool:
        return False

    def let_go(self) -> None:
        raise AssertionError("a request without an end")


@pytest.fixture(autouse=True)
def server() -> Iterator[Recorder]:
    recorder = Recorder()
    host.set_of_process(recorder)  # type: ignore[arg-type]
    yield recorder
    host.set_of_process(None)


class Running:
    """A decorated object, initialized as the server does it."""

    def __init__(self, target: Any, **config: Any) -> None:
        module = types.ModuleType("module")
        vars(module)["model"] = target
        definition, kind = definition_of(target), of_module(module)
        assert definition is not None
        assert kind is not None
        self.instance: Any = kind()
        self.outputs = [each.name for each in definition.outputs]
        self.streams = definition.streams
        self.instance.initialize(
            {
                "model_name": "m",
                "model_version": "3",
                "model_instance_name": "m_0_0",
                "model_instance_kind": "GPU",
                "model_instance_device_id": "1",
                "model_repository": "/models/m",
                "model_config": json.dumps({**definition.config(), **config}),
            }
        )

    def execute(self, *inputs: dict[str, Any], handle: Recorder | None = None) -> list[InferenceResponse]:
        requests = [self.request(each, handle or Recorder()) for each in inputs]
        returned = self.instance.execute(requests)
        responses = asyncio.run(returned) if asyncio.iscoroutine(returned) else returned
        return responses or []

    def request(self, inputs: dict[str, Any], handle: Any) -> InferenceRequest:
        tensors = [Tensor(name, np.asarray(value)) for name, value in inputs.items()]
        return InferenceRequest.make_unchecked(handle, tensors, self.outputs, decoupled=self.streams)

    def stream(self, handle: Recorder | None = None, **inputs: Any) -> list[Any]:
        """The values of the first output of each response, and the error at the end if there is one."""
        recorder = handle or Recorder()
        self.execute(inputs, handle=recorder)
        assert recorder.ended
        return [
            values(each)[self.outputs[0]] if not each.has_error() else text(each) for each in recorder.responses if each
        ]


def values(response: InferenceResponse) -> dict[str, Any]:
    assert not response.has_error(), text(response)
    return {tensor.name(): tensor.as_numpy().tolist() for tensor in response.output_tensors()}


def text(response: InferenceResponse) -> str:
    error = response.error()
    assert error is not None
    return error.message()


def texts(*values: str) -> NDArray[np.object_]:
    return np.array([value.encode() for value in values], np.object_)


# Batches


def test_requests_of_a_batch_run_together_and_get_their_own_rows() -> None:
    calls: list[tuple[int, ...]] = []

    @model(max_batch_size=8)
    def double(x: Rows) -> Rows:
        calls.append(x.shape)
        return x * 2

    first, second = np.ones((1, 2), np.float32), np.full((3, 2), 5, np.float32)
    responses = Running(double).execute({"x": first}, {"x": second})
    assert [values(each) for each in responses] == [{"output": [[2, 2]]}, {"output": [[10, 10]] * 3}]
    assert calls == [(4, 2)]


def test_requests_of_different_shapes_or_inputs_run_in_groups() -> None:
    calls: list[Any] = []

    @model(max_batch_size=8)
    def total(x: NDArray[np.int64], plus: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        calls.append((x.shape, None if plus is None else plus.shape))
        return np.asarray(x.sum(axis=1, keepdims=True) + (0 if plus is None else plus), np.int64)

    inputs = [{"x": np.ones((1, 2), int)}, {"x": np.ones((1, 3), int)}, {"x": np.ones((2, 2), int)}]
    responses = Running(total).execute(*inputs, {"x": np.ones((1, 2), int), "plus": np.ones((1, 1), int)})
    assert [values(each)["output"] for each in responses] == [[[2]], [[3]], [[2], [2]], [[3]]]
    assert calls == [((3, 2), None), ((1, 3), None), ((1, 2), (1, 1))]


def test_a_failing_batch_is_tried_one_by_one(server: Recorder) -> None:
    @model(max_batch_size=8)
    def positive(x: NDArray[np.int64]) -> NDArray[np.int64]:
        if (x < 0).any():
            raise ValueError("negative")
        return x

    good, bad = Running(positive).execute({"x": [[1]]}, {"x": [[-1]]})
    assert values(good) == {"output": [[1]]}
    line = positive.__code__.co_firstlineno + 3
    assert text(bad) == f"ValueError: negative\n\nAt:\n  {__file__}({line}): positive\n"
    assert [each.split("\n")[0] for each in server.lines] == ["ERROR Traceback (most recent call last):"]


def test_errors_that_the_function_chose_keep_their_code() -> None:
    @model
    def check(text: str) -> str:
        if text == "input":
            raise InvalidInputError("no such word")
        raise TritonError("later", TritonError.UNAVAILABLE)

    responses = Running(check).execute({"text": texts("input")}, {"text": texts("x")})
    errors = [each.error() for each in responses]
    assert [(each.message(), each.code()) for each in errors if each] == [
        ("no such word", ErrorCode.INVALID_ARG),
        ("later", ErrorCode.UNAVAILABLE),
    ]


# Values


def test_single_values_are_passed_row_by_row() -> None:
    @model(max_batch_size=8)
    def repeat(text: str, times: int = 2) -> tuple[str, float]:
        return text * times, times / 2

    responses = Running(repeat).execute(
        {"text": texts("a", "é").reshape(2, 1)}, {"text": texts("c").reshape(1, 1), "times": [[3]]}
    )
    assert [values(each) for each in responses] == [
        {"output_0": [[b"aa"], ["éé".encode()]], "output_1": [[1], [1]]},
        {"output_0": [[b"ccc"]], "output_1": [[1.5]]},
    ]


def test_lists_have_a_value_for_each_row() -> None:
    @model(max_batch_size=8)
    def upper(texts: list[str]) -> list[str]:
        return [each.upper() for each in texts]

    one, two = Running(upper).execute({"texts": texts("a").reshape(1, 1)}, {"texts": texts("b", "c").reshape(2, 1)})
    assert (values(one), values(two)) == ({"output": [[b"A"]]}, {"output": [[b"B"], [b"C"]]})


def test_without_batching_arrays_have_the_declared_shape() -> None:
    @model(outputs={"mean": ("FP32", [1]), "names": ("BYTES", [-1])})
    def describe(x: Annotated[NDArray[np.float32], Spec(shape=[-1, 2])], names: NDArray[np.str_], n: np.int32) -> Any:
        assert (names.dtype.kind, type(n)) == ("U", np.int32)
        return {"mean": x.mean(), "names": [f"{name}{n}" for name in names]}

    inputs = {"x": np.full((3, 2), 2, np.float32), "names": texts("a", "b"), "n": np.array([7], np.int32)}
    assert [values(each) for each in Running(describe).execute(inputs)] == [{"mean": [2.0], "names": [b"a7", b"b7"]}]


def returning(value: Any, outputs: dict[str, Any], **keywords: Any) -> InferenceResponse:
    @model(inputs={"x": ("FP32", [1])}, outputs=outputs, **keywords)
    def f(x: Any) -> Any:
        return value

    (response,) = Running(f).execute({"x": np.zeros((2, 1) if keywords else 1, np.float32)})
    return response


@pytest.mark.parametrize(
    ("value", "declaration", "expected"),
    [
        (1, ("FP32", [1]), [1.0]),
        ([1.5, 2], ("FP32", [2]), [1.5, 2.0]),
        (np.array([1.5]), ("FP32", [1]), [1.5]),
        (np.array([300]), ("INT16", [1]), [300]),
        ([], ("INT32", [-1]), []),
        (True, ("BOOL", [1]), [True]),
        ("é", ("BYTES", [1]), ["é".encode()]),
        ([["a", b"b"]], ("BYTES", [1, 2]), [[b"a", b"b"]]),
        (np.array(["a"]), ("BYTES", [1]), [b"a"]),
        (np.float64(3), ("FP16", [1, 1]), [[3.0]]),
        ((1.0,), ("FP32", [-1]), [1.0]),
        ((np.array([1.0, 2.0]),), ("FP32", [-1]), [1.0, 2.0]),
    ],
)
def test_returned_values_become_arrays_of_the_declared_type(value: Any, declaration: Any, expected: Any) -> None:
    assert values(returning(value, {"y": declaration})) == {"y": expected}


@pytest.mark.parametrize(
    ("value", "outputs", "batching", "message"),
    [
        (np.zeros((3, 1)), {"y": ("FP32", [1])}, True,
         "output 'y' has shape [3, 1], expected [2, 1]: the inputs have 2 rows, and the output 3"),
        (np.zeros(5), {"y": ("FP32", [5])}, True,
         "output 'y' has shape [5], expected [2, 5]: the inputs have 2 rows, and the output 5"),
        (np.zeros(2), {"y": ("FP32", [2])}, True,
         "output 'y' has shape [2], expected [2, 2], the first dimension being the batch"),
        (np.zeros((1, 1)), {"y": ("FP32", [2])}, False, "output 'y' has shape [1, 1], expected [2]"),
        ([1.5], {"y": ("INT32", [1])}, False, "output 'y' has the type float64, expected INT32 (int32)"),
        ([300], {"y": ("UINT8", [1])}, False,
         "output 'y' has the type int64, expected UINT8 (uint8), which cannot hold all of its values"),
        ("a", {"y": ("FP32", [1])}, False, "output 'y' has the type <U1, expected FP32 (float32)"),
        ([3], {"y": ("BYTES", [1])}, False, "output 'y' contains a int, expected str or bytes"),
        ([[1], [1, 2]], {"y": ("FP32", [1])}, False, "output 'y' is not an array: setting an array element with"),
        (None, {"y": ("FP32", [1])}, False, "output 'y' has the type object, expected FP32 (float32)"),
        ({"z": 1}, {"y": ("FP32", [1])}, False, "the dict it returned has no 'y'; its outputs are 'y'"),
        ({"y": 1, "z": 1}, {"y": ("FP32", [1])}, False,
         "the dict it returned has 'z', which it does not declare; its outputs are 'y'"),
        ((1, 2, 3), {"y": ("FP32", [1]), "z": ("FP32", [1])}, False,
         "it returned a tuple of 3, expected a tuple of 2 or a dict: its outputs are 'y', 'z'"),
    ],
)  # fmt: skip
def test_returned_values_that_do_not_fit(
    value: Any, outputs: dict[str, Any], batching: bool, message: str, server: Recorder
) -> None:
    keywords: dict[str, Any] = {"max_batch_size": 4} if batching else {}
    shown = text(returning(value, outputs, **keywords))
    assert shown.startswith(f"model 'returning.<locals>.f' ({__file__}, line ")
    assert message in shown
    assert server.lines == []


def test_inputs_that_are_no_single_value_or_no_text_are_the_client_s_fault() -> None:
    @model
    def upper(text: str) -> str:
        return text

    responses = Running(upper).execute({"text": texts("a", "b")}, {"text": np.array([b"\xff"], np.object_)})
    assert text(responses[0]) == "input 'text' has shape [2], expected a single value"
    assert text(responses[1]).startswith("input 'text' is not UTF-8: 'utf-8' codec can't decode byte 0xff")
    assert {each.error().code() for each in responses} == {ErrorCode.INVALID_ARG}  # type: ignore[union-attr]


# Streams


def test_a_generator_streams() -> None:
    closed = []

    @model
    def count(upto: int) -> Iterator[int]:
        try:
            yield from range(upto)
            if upto > 5:
                raise ValueError("too many")
        finally:
            closed.append(upto)

    running = Running(count)
    assert running.stream(upto=[3]) == [[0], [1], [2]]
    assert running.stream(upto=[0]) == []
    assert running.stream(upto=[6])[5:][1].startswith("ValueError: too many\n\nAt:\n")
    handle = Recorder()
    handle.cancelled_after = 1
    assert running.stream(handle, upto=[4]) == [[0]]
    assert closed == [3, 0, 6, 4]


def test_asynchronous_streams_run_at_the_same_time() -> None:
    both = asyncio.Barrier(2)

    @model
    async def pairs(text: str) -> AsyncIterator[str]:
        await both.wait()
        yield text
        yield text + text

    running = Running(pairs)
    handles = [Recorder(), Recorder()]
    requests = [running.request({"text": texts(each)}, handle) for each, handle in zip("ab", handles, strict=True)]
    asyncio.run(running.instance.execute(requests))
    sent = [[values(each)["output"] for each in handle.responses if each] for handle in handles]
    assert sent == [[[b"a"], [b"aa"]], [[b"b"], [b"bb"]]]


def test_asynchronous_functions_run_for_all_requests_at_the_same_time() -> None:
    both = asyncio.Barrier(2)

    @model
    async def wait(x: int) -> int:
        await both.wait()
        return x + 1

    assert [values(each) for each in Running(wait).execute({"x": [1]}, {"x": [2]})] == [
        {"output": [2]},
        {"output": [3]},
    ]


def test_a_function_that_returns_an_awaitable_has_to_say_so() -> None:
    async def later(x: float) -> float:
        await asyncio.sleep(0)
        return x

    @model
    def f(x: float) -> float:
        return later(x)  # type: ignore[return-value]

    with pytest.raises(TypeError, match="expected its result"):
        Running(f).execute({"x": [1.0]})


# Classes


def test_the_life_of_a_class() -> None:
    seen: list[Any] = []

    @model
    class Scale:
        def __init__(self, context: Context) -> None:
            self.context = context

        def predict(self, x: float) -> float:
            return x * self.context.version

        def is_ready(self) -> bool:
            return True

        def close(self) -> None:
            seen.append("closed")

    running = Running(Scale)
    context = running.instance._object.context
    assert (context.model_name, context.kind, context.device, context.directory) == (
        "m",
        "GPU",
        1,
        str(Path(__file__).parent),
    )
    assert context.config["input"][0]["name"] == "x"
    assert [values(each) for each in running.execute({"x": [2.0]})] == [{"output": [6.0]}]
    assert running.instance.is_ready() is True
    running.instance.finalize()
    assert seen == ["closed"]


def test_functions_have_no_end_and_are_always_ready() -> None:
    @model
    def f(x: float) -> float:
        return x

    running = Running(f)
    running.instance.finalize()
    assert not hasattr(running.instance, "is_ready")


def test_a_configuration_that_does_not_fit_is_refused() -> None:
    @model
    def f(x: float) -> float:
        return x

    with pytest.raises(ValueError, match="the configuration has max_batch_size 4, the declaration 0"):
        Running(f, max_batch_size=4)
    with pytest.raises(ValueError, match="the configuration has input 'z'; the declaration has x"):
        Running(f, input=[{"name": "z"}])


def test_what_only_a_config_pbtxt_can_say_in_a_repository_is_warned_of(server: Recorder) -> None:
    @model(isolation="thread", instances=3)
    def f(x: float) -> float:
        return x

    Running(f)
    assert server.lines == []
    Running(f, parameters={}, instance_group=[{"count": 1}])
    assert [line.split(" has no effect")[0] for line in server.lines] == [
        "WARNING isolation='thread'",
        "WARNING instances",
    ]


# As a file


def load(path: Path, text: str) -> python_model.LoadedModel:
    (path / "1").mkdir()
    file = path / "1" / "model.py"
    file.write_text(text)
    return python_model.load(str(file), "m", None, isolated=True)


def test_a_file_with_a_decorated_object_completes_its_configuration(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        "import numpy as np\nimport modserve\n\n\n"
        "@modserve.model(inputs={'x': ('FP32', [3])}, outputs={'y': ('FP32', [1])}, max_batch_size=4)\n"
        "def total(x):\n    return x.sum(axis=1)\n",
    )
    completed = loaded.auto_complete_config('{"name": "m", "max_batch_size": 0, "input": [], "output": []}')
    assert completed is not None
    config = json.loads(completed)
    assert config == {
        "name": "m",
        "max_batch_size": 4,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [3]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}],
        "dynamic_batching": {},
    }


def test_a_generator_completes_the_transaction_policy() -> None:
    @model
    def count(upto: int) -> Iterator[int]:
        yield upto

    module = types.ModuleType("module")
    vars(module)["model"] = count
    kind: Any = of_module(module)
    completed = kind.auto_complete_config(ModelConfig('{"input": [], "output": []}'))
    assert completed.as_dict()["model_transaction_policy"] == {"decoupled": True}


def test_a_file_with_several_decorated_objects_is_refused(tmp_path: Path) -> None:
    line = "@modserve.model\ndef {}(x: str) -> str:\n    return x\n"
    with pytest.raises(ModelError, match=r"model.py has several decorated models \(a, b\)"):
        load(tmp_path, "import modserve\n" + line.format("a") + line.format("b"))
