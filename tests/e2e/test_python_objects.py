"""Objects of a model that raise, or are not what they seem, wherever the server reads them fail one request alone.

One server has the model in every mode. Requests come in pairs that run in one batch: the faulty one, and a neighbour.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from python_faults import Outcome, call
from python_objects import CODE
from server_process import ServerProcess, serving

AS_THEY_SEEM = ("masked", "own_data", "matrix", "name_is_odd", "name_is_enum")
"""Arrays and names of classes of the model's own, which are read as those of numpy and Python."""
FAILED = "Failed to process the request(s) for model '{model}', message: "
RESPONSES = {
    "message_raises": "Boom: line X",
    "message_leaves": "SystemExit: 3",
    "message_is_none": "TypeError: the message of a TritonError must be a str, not NoneType",
    "code_raises": "Boom: line X",
    "code_is_unknown": "TypeError: the code of a TritonError must be one such as TritonError.NOT_FOUND, from 0 to 7, "
    "not 99",
    "code_is_text": "TypeError: the code of a TritonError must be one such as TritonError.NOT_FOUND, from 0 to 7, "
    "not 'E42'",
    "name_raises": "Boom: line X",
    "name_leaves": "SystemExit: 3",
    "name_is_none": "TypeError: the name of a Tensor must be a str, not NoneType",
    "no_init_tensor": "AttributeError: ",
    "no_init_response": "AttributeError: ",
    "outputs_raise": "Boom: line X",
    "outputs_are_none": "TypeError: InferenceResponse(): output_tensors must be a list of Tensor, not NoneType",
    "outputs_are_texts": "TypeError: InferenceResponse(): output_tensors must be a list of Tensor, but element 0 is "
    "str",
    "outputs_change": "TypeError: InferenceResponse(): output_tensors must be a list of Tensor, but element 1 is str",
    "error_raises": "Boom: line X",
}
RAISES = {
    "masked_elements": "TritonModelException: Tensor 'OUT' has 1 masked element, which the protocol cannot express; "
    "array.filled(value) gives them a value",
    "masked_texts": "TritonModelException: Tensor 'OUT' has 1 masked element",
    "leaves": "SystemExit: 3",
    "str_raises": "OddException: <its text cannot be produced: Boom>",
    "str_leaves": "OddException: <its text cannot be produced: SystemExit>",
    "str_is_none": "OddException: <its text cannot be produced: TypeError>",
    "own_code": "OddTritonModelException: own code",
    "code_property": "OddTritonModelException: <Boom when it was described>",
    "base": "OddBaseException: line X",
    "generator_exit": "GeneratorExit: ",
    "asynchronous_end": "StopAsyncIteration: ",
    "interrupt": "KeyboardInterrupt: ",
    "cancelled": "CancelledError: ",
    "element": "Boom: line X",
    "parameter": "Boom: line X",
    "call": "Boom: line X",
}
CANCELS = {"cancels": "CancelledError: ", "cancels_all": "CancelledError: "}
CONFIG = """
backend: "python" max_batch_size: 2 dynamic_batching { preferred_batch_size: 2 max_queue_delay_microseconds: 60000000 }
input { name: "IN" data_type: TYPE_STRING dims: [ 1 ] } output { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }
instance_group { count: 1 kind: KIND_CPU }
"""
MODELS = {
    "process": "",
    "process_async": "",
    "process_decoupled": "model_transaction_policy { decoupled: true }",
    "thread": "",
    "thread_async": "",
    "thread_decoupled": "model_transaction_policy { decoupled: true }",
    "inline": "",
    "inline_async": "",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    for name, more in MODELS.items():
        folder = repository / name / "1"
        folder.mkdir(parents=True)
        kind = "AsyncModel" if name.endswith("_async") else "SyncModel"
        code = f"{CODE}\n\nTritonPythonModel = {kind}\n"
        (folder / "model.py").write_text(code)
        mode = f'parameters {{ key: "EXECUTION_MODE" value {{ string_value: "{name.partition("_")[0]}" }} }}'
        (folder.parent / "config.pbtxt").write_text(CONFIG + mode + more)
    with serving(repository, errors=(r" ERROR +modserve\.",)) as running:
        yield running


def pair(server: ServerProcess, model: str, text: str) -> tuple[Outcome, Outcome]:
    """What becomes of a request with a text and of its neighbour in the same batch."""
    bodies = [
        {"inputs": [{"name": "IN", "datatype": "BYTES", "shape": [1, 1], "data": [each]}]} for each in (text, "fine")
    ]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda body: call(server.http_port, f"models/{model}/infer", body), bodies)
    return first, second


def is_right(outcome: Outcome) -> bool:
    return outcome.status == 200 and '"data":[1.0]' in outcome.text


CASES = [
    (model, text, expected, of_batch)
    for model in MODELS
    for table, of_batch in ((RESPONSES, False), (RAISES, True), (CANCELS, True))
    for text, expected in table.items()
    if table is not CANCELS or model.endswith("_async")
    if (model.partition("_")[0], text) not in {("inline", "call"), ("inline", "cancels_all")}
]
"""In the server's own event loop, a plain call is refused, and a model that cancels all tasks cancels the server's."""


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("text", AS_THEY_SEEM)
def test_what_is_as_it_seems(server: ServerProcess, model: str, text: str) -> None:
    assert all(is_right(outcome) for outcome in pair(server, model, text))


@pytest.mark.parametrize(("model", "text", "expected", "of_batch"), CASES, ids=lambda value: str(value)[:20])
def test_a_fault_fails_its_request(server: ServerProcess, model: str, text: str, expected: str, of_batch: bool) -> None:
    faulty, neighbour = pair(server, model, text)
    assert faulty.status == 500, faulty
    assert faulty.text.startswith(FAILED.format(model=model) + expected), faulty.text
    assert neighbour.status == 500 if of_batch else is_right(neighbour)
    assert all(is_right(outcome) for outcome in pair(server, model, "fine"))


def test_no_process_was_started_anew(server: ServerProcess) -> None:
    assert "was lost" not in server.log
