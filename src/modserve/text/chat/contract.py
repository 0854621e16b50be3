"""Contract of text generation models: request text to tensors, and tensors to response text.

The tensors are as in Triton's vLLM backend (src/utils/request.py, docs/additional_outputs.md): ``text_input`` and
``text_output``, and others if the model's configuration has them. Without ``sampling_parameters``, inputs named like
sampling parameters get them one by one, so that a Python function may take ``max_tokens`` or ``stop``. A model with one
text input and one text output also qualifies, whatever their names, and an input ``messages`` gets the conversation as
JSON.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import orjson

from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.errors import invalid
from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor

from . import fields

TEXT_INPUT, TEXT_OUTPUT = "text_input", "text_output"
SAMPLING_PARAMETERS = "sampling_parameters"
MESSAGES = "messages"
STREAM, EXCLUDE_INPUT = "stream", "exclude_input_in_output"
LOGPROBS = "logprobs"
_COUNTS = ("num_input_tokens", "num_output_tokens")
_REPORTS = ("finish_reason", *_COUNTS)
_OWN_INPUTS = frozenset({STREAM, EXCLUDE_INPUT, SAMPLING_PARAMETERS, *(f"return_{name}" for name in _REPORTS)})

KNOBS: frozenset[str] = fields.PARAMETERS | {LOGPROBS}
"""Inputs that get the sampling parameter of the same name."""

DEFAULT_MAX_TOKENS = "default_max_tokens"
"""Model parameter with the default of `max_tokens`."""


@dataclass(frozen=True, slots=True)
class Contract:
    """Input and output tensors of a text model. `prompt` is None for a model that takes only `messages`."""

    model: str
    prompt: str | None
    output: str
    specs: Mapping[str, TensorSpec]
    outputs: frozenset[str]
    batched: bool
    constants: Mapping[bool, Mapping[str, Tensor]]
    """Constant inputs of streaming requests (True) and of others."""
    default_max_tokens: int | None

    @property
    def takes_messages(self) -> bool:
        return self.prompt is None

    def takes(self, parameter: str) -> bool:
        """True if the model accepts a sampling parameter."""
        return SAMPLING_PARAMETERS in self.specs or (parameter in KNOBS and parameter in self.specs)

    @property
    def counts(self) -> bool:
        """True if the model itself reports how many tokens it has read and written."""
        return self.outputs.issuperset(_COUNTS)

    @property
    def gives_logprobs(self) -> bool:
        return LOGPROBS in self.outputs

    def inputs(self, prompt: str, stream: bool, sampling: Mapping[str, object], logprobs: bool) -> dict[str, Tensor]:
        """Return the tensors of a request. Raises INVALID_ARG for a prompt or a value that the model cannot take."""
        inputs = dict(self.constants[stream])
        inputs[self.prompt or MESSAGES] = self._text(prompt)
        if self.default_max_tokens is not None and "max_tokens" not in sampling:
            sampling = {**sampling, "max_tokens": self.default_max_tokens}
        if SAMPLING_PARAMETERS in self.specs:
            if sampling:
                inputs[SAMPLING_PARAMETERS] = self._text(json.dumps(sampling, separators=(",", ":")))
        else:
            for name, value in sampling.items():
                if name in KNOBS and name in self.specs and name not in inputs:
                    inputs[name] = _knob(self.specs[name], value, self.batched)
        if logprobs and f"return_{LOGPROBS}" in self.specs:
            inputs[f"return_{LOGPROBS}"] = _flag(True, self.batched)
        return inputs

    def _text(self, text: str) -> Tensor:
        try:
            return _texts([text], self.batched)
        except UnicodeEncodeError as error:
            surrogate = error.object[error.start]
            raise invalid(f"the text has a lone surrogate, {surrogate!a}, which is no character") from None


class Piece(NamedTuple):
    """Addition of a response to a generation. Fields that the model does not report are None."""

    text: bytes
    finish_reason: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    """Number of tokens in this piece."""
    logprobs: list[dict[str, Any]] | None = None
    """Alternatives by token id for each of the piece's tokens, the sampled one first."""


def contract_of(config: ModelConfig) -> Contract | None:
    """Return the contract of a model; None if it does not generate text."""
    specs, outputs = config.inputs_by_name, config.outputs_by_name
    output = TEXT_OUTPUT if TEXT_OUTPUT in outputs else config.output_names[0] if len(outputs) == 1 else ""
    if not output or outputs[output].datatype is not dtypes.BYTES:
        return None
    prompt: str | None = TEXT_INPUT if TEXT_INPUT in specs else None
    if prompt is None and MESSAGES not in specs:
        required = [name for name in specs if name not in config.optional_inputs]
        if len(required) != 1:
            return None
        prompt = required[0]
    if not _takes_one_text(specs[MESSAGES if prompt is None else prompt]):
        return None
    batched = config.max_batch_size > 0
    flags = {f"return_{name}": True for name in _REPORTS if name in outputs} | {EXCLUDE_INPUT: True}
    constants = {
        stream: {name: _flag(value, batched) for name, value in {**flags, STREAM: stream}.items() if name in specs}
        for stream in (False, True)
    }
    said = config.parameters.get(DEFAULT_MAX_TOKENS, "")
    default = int(said) if said.isdecimal() else None
    return Contract(config.name, prompt, output, specs, frozenset(outputs), batched, constants, default)


def may_generate(config: ModelConfig, from_prompt: bool = False) -> bool:
    """True if the model generates text, or may: the tensors of a never loaded model are unknown.

    `from_prompt`: only if it accepts more than messages.
    """
    if not (config.inputs or config.outputs):
        return True
    contract = contract_of(config)
    return contract is not None and not (from_prompt and contract.takes_messages)


def piece_of(contract: Contract, response: InferenceResponse) -> Piece:
    """Return the piece in a response."""
    outputs = response.outputs
    text = _elements(outputs.get(contract.output))
    finish = _elements(outputs.get("finish_reason"))
    logprobs = _elements(outputs.get(LOGPROBS)) if contract.gives_logprobs else []
    return Piece(
        text[0] if len(text) == 1 else b"".join(text),
        _finish_reason(finish[0]) if finish else None,
        _number(outputs.get("num_input_tokens")),
        _number(outputs.get("num_output_tokens")),
        _alternatives(logprobs[0]) if logprobs else None,
    )


def _takes_one_text(spec: TensorSpec) -> bool:
    return spec.datatype is dtypes.BYTES and all(size in (1, -1) for size in spec.dims)


def _texts(texts: list[str], batched: bool) -> Tensor:
    encoded = [text.encode() for text in texts]
    raw = b"".join(len(text).to_bytes(4, "little") + text for text in encoded)
    return Tensor.from_raw(dtypes.BYTES, (1, len(texts)) if batched else (len(texts),), raw)


def _flag(value: bool, batched: bool) -> Tensor:
    return Tensor.from_raw(dtypes.BOOL, (1, 1) if batched else (1,), bytes([value]))


def _knob(spec: TensorSpec, value: object, batched: bool) -> Tensor:
    if spec.datatype is dtypes.BYTES:
        texts = value if isinstance(value, list) and -1 in spec.dims else [value]
        return _texts([each if isinstance(each, str) else orjson.dumps(each).decode() for each in texts], batched)
    try:
        array = np.array(value if isinstance(value, list) else [value], dtype=spec.datatype.numpy)
    except (TypeError, ValueError, OverflowError):
        raise invalid(f"input '{spec.name}' of the model takes {spec.datatype.name}, not {value!r:.100}") from None
    return Tensor.from_array(array.reshape((1, -1)) if batched else array, spec.datatype)


def _elements(tensor: Tensor | None) -> list[bytes]:
    elements: list[bytes] = [] if tensor is None else tensor.array.reshape(-1).tolist()
    return elements


def _number(tensor: Tensor | None) -> int | None:
    if tensor is None or not tensor.array.size:
        return None
    return int(tensor.array.reshape(-1)[0])


def _finish_reason(reason: bytes) -> str | None:
    """Return the finish reason; vLLM writes Python's ``None`` while generation continues."""
    text = reason.decode(errors="replace")
    return None if text in ("", "None") else text


def _alternatives(text: bytes) -> list[dict[str, Any]] | None:
    try:
        value = json.loads(text)  # vLLM writes -Infinity
    except ValueError:
        return None
    return value if isinstance(value, list) else None
