"""Request and response tensors of language models, as in Triton's backend for vLLM.

Pure: `api` is the module triton_python_backend_utils.
"""

import difflib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

UNFINISHED = "None"
"""The reason of an output that goes on, as Triton's backend for vLLM writes it."""
SAMPLING = "sampling_parameters"


class RequestError(ValueError):
    """A fault of a request, with the expected value."""


class OutputOptions(NamedTuple):
    """Extra outputs that a request asks for in addition to the text."""

    stream: bool
    prepend_input: bool
    finish_reason: bool
    cumulative_logprob: bool
    logprobs: bool
    num_input_tokens: bool
    num_output_tokens: bool
    token_ids: bool


class OutputPiece(NamedTuple):
    """New content of one output. `logprobs` is JSON, empty if the request does not want it."""

    text: str
    reason: str
    cumulative_logprob: float
    logprobs: str
    ids: Sequence[int]


class GenerationCall(NamedTuple):
    """A request with its sender.

    `sampling` has the sampling parameters. Unless `strict`, they are parameters of the request, and not all of them may
    be meant for the engine. `images` are files in Base64. `at` is when the request came.
    """

    request: Any
    sender: Any
    text: str
    images: Sequence[bytes]
    sampling: Mapping[str, Any]
    strict: bool
    options: OutputOptions
    at: float


class GenerationEngineApi(Protocol):
    """Interface of the engine that runs a model's requests."""

    @property
    def room(self) -> int:
        """Maximum of concurrent requests. What the engine cannot run yet shall wait in the server's queue."""

    def begin(self, call: GenerationCall) -> None:
        """Begin to generate; the call's sender gets the responses, from any thread. Raises RequestError."""

    def turn(self) -> bool:
        """Do a step of the begun requests, if this thread does that; returns whether there is more to do."""

    def close(self) -> None:
        """End the engine when no request runs any more."""


def read(request: Any, sender: Any, at: float) -> GenerationCall:
    """Read a request. Raises RequestError."""
    inputs = {tensor.name(): tensor for tensor in request.inputs()}
    words = inputs.get(SAMPLING)
    values = read_json(as_bytes(words)) if words is not None else json.loads(request.parameters() or "{}")
    images = inputs.get("image")
    return GenerationCall(
        request,
        sender,
        _text(inputs["text_input"]),
        () if images is None else images.as_numpy().reshape(-1).tolist(),
        values,
        words is not None,
        _read_options(inputs),
        at,
    )


def read_json(text: bytes) -> Mapping[str, Any]:
    """Read the input ``sampling_parameters``. Raises RequestError, with the place of a fault in the JSON."""
    try:
        values = json.loads(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RequestError(f"{SAMPLING} is not UTF-8: byte {error.start} is invalid") from None
    except json.JSONDecodeError as error:
        raise RequestError(
            f"{SAMPLING} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except RecursionError:
        raise RequestError(f"{SAMPLING} is nested too deeply") from None
    if not isinstance(values, dict):
        raise RequestError(f"{SAMPLING} must be a JSON object, not {_kind(values)}")
    return values


def unknown(name: str, known: Collection[str]) -> RequestError:
    """Return the refusal of an unknown sampling parameter."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    hint = f"; did you mean '{near[0]}'?" if near else f"; known ones are: {', '.join(sorted(known))}"
    return RequestError(f"unknown sampling parameter '{name}'{hint}")


def as_bytes(tensor: Any) -> bytes:
    value = tensor.as_numpy().flat[0]
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")


def arrays(options: OutputOptions, pieces: Sequence[OutputPiece], prompt_length: int, before: str) -> dict[str, Any]:
    """Return a response, by the names of the model's outputs. `before` goes before each text."""
    outputs: dict[str, Any] = {"text_output": _bytes([before + piece.text for piece in pieces])}
    if options.finish_reason:
        outputs["finish_reason"] = _bytes([piece.reason for piece in pieces])
    if options.cumulative_logprob:
        outputs["cumulative_logprob"] = np.array([piece.cumulative_logprob for piece in pieces], np.float32)
    if options.logprobs:
        outputs["logprobs"] = _bytes([piece.logprobs for piece in pieces])
    if options.num_input_tokens:
        outputs["num_input_tokens"] = np.array([prompt_length], np.uint32)
    if options.num_output_tokens:
        outputs["num_output_tokens"] = np.array([len(piece.ids) for piece in pieces], np.uint32)
    if options.token_ids:
        outputs["token_ids"] = _bytes([json.dumps(list(piece.ids)) for piece in pieces])
    return outputs


class Replies:
    """Sender of responses. `code` is a name of Triton's error codes."""

    def __init__(self, api: Any) -> None:
        self._api = api
        self._final = api.TRITONSERVER_RESPONSE_COMPLETE_FINAL

    def send(self, sender: Any, arrays: Mapping[str, Any], final: bool) -> None:
        tensors = [self._api.Tensor(name, array) for name, array in arrays.items()]
        sender.send(self._api.InferenceResponse(tensors), self._final if final else 0)

    def fail(self, sender: Any, code: str, message: str) -> None:
        error = self._api.TritonError(message, getattr(self._api.TritonError, code))
        sender.send(self._api.InferenceResponse(error=error), self._final)

    def end(self, sender: Any) -> None:
        sender.send(flags=self._final)


def _bytes(values: Sequence[str]) -> Any:
    return np.array([value.encode("utf-8", "replace") for value in values], np.object_)


def _text(tensor: Any) -> str:
    try:
        return as_bytes(tensor).decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"text_input is not UTF-8: byte {error.start} is invalid") from None


def _read_options(inputs: Mapping[str, Any]) -> OutputOptions:
    stream = _flag(inputs.get("stream"))
    exclude = inputs.get("exclude_input_in_output")
    prepend = not stream if exclude is None else not _flag(exclude)
    if prepend and stream:
        raise RequestError("exclude_input_in_output is false, but stream is true: a stream never has the input")
    rest = {name: _flag(inputs.get(f"return_{name}")) for name in OutputOptions._fields[2:]}
    return OutputOptions(stream, prepend, **rest)


def _flag(tensor: Any) -> bool:
    return tensor is not None and bool(tensor.as_numpy().flat[0])


def _kind(value: Any) -> str:
    names: list[tuple[type, str]] = [(bool, "a boolean"), (str, "a string"), (list, "an array"), (int, "a number")]
    return next((words for kind, words in names if isinstance(value, kind)), "null" if value is None else "a number")
