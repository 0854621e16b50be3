"""Check of requests against their model, with Triton's texts, and conversion to the model's own shapes.

The order of the checks is Triton's (core, InferenceRequest::Normalize): outputs, input count, input names and batch
dimension, batch size, and then each input's datatype, shape and byte size.
"""

import math
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from ..configuration.merging import Padding
from ..configuration.model_config import ModelConfig, TensorSpec
from ..errors import ModserveError, invalid
from ..tensors import dtypes
from ..tensors.tensor import Buffer, Shape, Tensor, TruncatedError, as_reshape, format_shape
from .inflight import Inflight
from .request import InferenceRequest, RequestForm
from .response import ResponseSink

_MOST = 2**63 - 1
_SHOWN = 10
_MOST_FORMS: Final = 256
"""Maximum number of cached request forms. If there are more, the cache is emptied."""
_BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


class _Known(NamedTuple):
    """Values that all requests of a form share."""

    output_names: tuple[str, ...]
    batch_size: int
    shape_key: Any
    length: int


class Signature:
    """Requests that a model accepts, computed once from its configuration."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self._rules = {spec.name: (spec, _item_bytes(spec)) for spec in config.inputs}
        self._all_required = config.required_input_count == len(config.inputs)
        self._required = tuple(spec.name for spec in config.inputs if not spec.optional)
        self._padding = config.padding
        self._ragged = tuple(spec.name for spec in config.inputs if spec.ragged)
        mask = None if config.padding is None else config.padding.mask
        """Name of the mask, which every batch has, in any shape that fits."""
        self._keyed = tuple(
            spec.name
            for spec in config.inputs
            if (spec.optional or (-1 in spec.dims and not spec.ragged)) and spec.name != mask
        )
        self._same_inputs = all(spec.reshape is None and spec.datatype is not dtypes.BYTES for spec in config.inputs)
        """True if accepted requests keep their own inputs, and the elements do not matter."""
        self._forms: dict[RequestForm, _Known] = {}

    def accept(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        """Make a request ready to be queued, in the model's own shapes. Raises INVALID_ARG."""
        form = request.form
        known = None if form is None else self._forms.get(form)
        if known is None:
            return self._accept(request, sink, now_ns)
        names, batch_size, shape_key, length = known
        deadline_ns = request.deadline_ns
        inflight = Inflight(request, sink, request.inputs, names, batch_size, shape_key, now_ns, deadline_ns)
        if length:
            inflight.length = length
        return inflight

    def _accept(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        """Accept a request like `accept`, even if it is the first of its form."""
        config = self.config
        output_names = request.outputs or config.output_names
        if request.outputs:
            self._check_outputs(request)
        inputs = request.inputs
        if not config.required_input_count <= len(inputs) <= len(config.inputs):
            raise self._wrong_count(request)
        rules = self._rules
        batching = config.batching
        batch_size = self._batch_size(request) if batching else 0
        accepted: dict[str, Tensor] = {}
        for name, tensor in inputs.items():
            rule = rules.get(name)
            if rule is None:
                raise self._unknown_input(name)
            spec, expected = rule
            if tensor.datatype is not spec.datatype:
                raise invalid(
                    f"{request.label}inference input '{spec.name}' data-type is '{tensor.datatype.name}', "
                    f"but model '{config.name}' expects '{spec.datatype.name}'"
                )
            shape = tensor.shape
            item = shape[1:] if batching else shape
            if item != spec.dims or -1 in item:
                self._check_shape(request, spec, tensor, item)
            received = tensor.received
            if received is not None:
                if expected >= 0:
                    expected = expected * batch_size if batching else expected
                    if len(received) != expected:
                        raise self._wrong_size(request, spec, expected, len(received))
                else:
                    self._check_bytes(request, spec, tensor, received)
            if spec.reshape is not None:
                tensor = tensor.reshaped((*shape[:batching], *as_reshape(spec.reshape, spec.dims, item)))
            accepted[name] = tensor
        if not self._all_required and any(name not in accepted for name in self._required):
            raise self._wrong_count(request)
        shape_key: object = None
        length = 0
        if self._padding is not None:
            length = self._length(request, accepted, self._padding)
            shape_key = self._key(accepted)
        elif self._ragged:
            length = sum(math.prod(accepted[name].shape[batching:]) for name in self._ragged if name in accepted)
            shape_key = self._key(accepted)
        elif self._keyed:
            # Requests share a batch if they give the same optional inputs, and equal shapes where shapes may vary.
            keyed = [accepted.get(name) for name in self._keyed]
            shape_key = tuple(None if tensor is None else tensor.shape[batching:] for tensor in keyed)
        inflight = Inflight(request, sink, accepted, output_names, batch_size, shape_key, now_ns, request.deadline_ns)
        if length:
            inflight.length = length
        if request.form is not None and self._same_inputs:
            if len(self._forms) >= _MOST_FORMS:
                self._forms.clear()
            self._forms[request.form] = _Known(output_names, batch_size, shape_key, length)
        return inflight

    def _key(self, accepted: Mapping[str, Tensor]) -> object:
        """Return the shape key for batches with requests of different lengths, without these dimensions."""
        dims = self._equal_dims
        return tuple([dims(name, accepted[name].shape) if name in accepted else None for name in self._keyed])

    def _equal_dims(self, name: str, shape: Shape) -> Shape:
        if self._rules[name][0].ragged:
            return ()
        item = shape[self.config.batching :]
        axis = None if self._padding is None else self._padding.axes.get(name)
        return item if axis is None else (*item[:axis], *item[axis + 1 :])

    def _length(self, request: InferenceRequest, accepted: Mapping[str, Tensor], padding: Padding) -> int:
        """Return the size of the padded dimension, in which all inputs that have it must agree."""
        first, length = "", 0
        for name, axis in padding.axes.items():
            tensor = accepted.get(name)
            if tensor is None:
                continue
            size = tensor.shape[1 + axis]
            if not first:
                first, length = name, size
            elif size != length:
                raise invalid(
                    f"{request.label}input '{name}' has {size} in dimension {1 + axis} but input '{first}' has "
                    f"{length} in dimension {1 + padding.axes[first]} for model '{self.config.name}'; they are padded "
                    "together and must be of equal length"
                )
        return length

    def _check_outputs(self, request: InferenceRequest) -> None:
        known = self.config.outputs_by_name
        names = request.outputs
        seen: set[str] = set()
        for name in names:
            if name in seen:
                raise invalid(f"{request.label}output '{name}' already exists in request")
            seen.add(name)
        for name in names:
            if name not in known:
                raise invalid(f"unexpected inference output '{name}' for model '{self.config.name}'")

    def _batch_size(self, request: InferenceRequest) -> int:
        config = self.config
        batch_size: int | None = None
        inputs = request.inputs
        for name, tensor in inputs.items():
            if name not in self._rules:
                raise self._unknown_input(name)
            if not tensor.shape:
                raise invalid(
                    f"{request.label}input '{name}' has no shape but model requires batch dimension for '{config.name}'"
                )
            if batch_size is None:
                batch_size = tensor.shape[0]
            elif tensor.shape[0] != batch_size:
                first = next(iter(request.inputs))
                raise invalid(
                    f"{request.label}input '{name}' batch size does not match other inputs for '{config.name}': shapes "
                    f"begin with the number of rows, but that of '{first}' is {format_shape(inputs[first].shape)}, and "
                    f"that of '{name}' {format_shape(tensor.shape)}"
                )
            if not batch_size:
                raise self._empty_batch(request, self._rules[name][0], tensor.shape)
        if batch_size is None:
            return 0
        if batch_size < 0:
            first, tensor = next(iter(request.inputs.items()))
            raise self._make_shape_error(request, first, tensor.shape)
        if batch_size > config.max_batch_size:
            raise invalid(
                f"{request.label}inference request batch-size must be <= {config.max_batch_size} for '{config.name}', "
                f"got {batch_size}{self._lacks_rows(request) or config.batch_size_remedy()}"
            )
        return batch_size

    def _lacks_rows(self, request: InferenceRequest) -> str:
        """Return the end of a message about a missing batch size, if the shape is that of one row; else empty."""
        for name, tensor in request.inputs.items():
            spec = self._rules[name][0]
            if len(tensor.shape) == len(spec.dims):
                one = format_shape((1, *tensor.shape))
                return f": the shape of '{name}' lacks the number of rows in front, which is {one} for one row"
        return ""

    def _check_shape(self, request: InferenceRequest, spec: TensorSpec, tensor: Tensor, item: Shape) -> None:
        # Of other negative dimensions an even number would pass for a size.
        if -1 in item or min(item, default=0) < 0 <= math.prod(item):
            raise self._make_shape_error(request, spec.name, tensor.shape)
        if len(item) == len(spec.dims) and all(want in (-1, got) for want, got in zip(spec.dims, item, strict=True)):
            if 0 in item:
                self._check_empty(spec, tensor)
            return
        raise invalid(
            f"{request.label}unexpected shape for input '{spec.name}' for model '{self.config.name}'. "
            f"Expected {format_shape(self.config.full_dims(spec))}, got {format_shape(tensor.shape)}. "
            + (_BATCH_NOTE if self.config.batching and len(item) != len(spec.dims) else "")
        )

    def _check_empty(self, spec: TensorSpec, tensor: Tensor) -> None:
        """Check an empty tensor: its size fits any other dimensions, but no array may have them all."""
        if math.prod(size or 1 for size in tensor.shape) * (spec.datatype.size or 8) > _MOST:
            shape = format_shape(tensor.shape)
            effect = f"causes total element count to exceed maximum size of {_MOST}"
            raise invalid(f"invalid shape for input '{spec.name}': shape {shape} {effect}")

    def _check_bytes(self, request: InferenceRequest, spec: TensorSpec, tensor: Tensor, raw: Buffer) -> None:
        count = math.prod(tensor.shape)
        if spec.datatype is not dtypes.BYTES:
            expected = count * spec.datatype.size
            if len(raw) != expected:
                raise self._wrong_size(request, spec, expected, len(raw))
            return
        where = f"for inference input '{spec.name}' for model '{self.config.name}'"
        try:
            elements = tensor.count_elements()
        except TruncatedError as error:
            if error.in_length:
                raise invalid(
                    f"{request.label}incomplete string length indicator {where}, expecting 4 bytes but only "
                    f"{error.left} bytes available. Please make sure the string length indicator is in one buffer."
                ) from None
            # One element too many is too many, whether it is whole or not.
            elements = error.complete + (error.complete >= count)
        if elements > count:
            raise invalid(f"{request.label}unexpected number of string elements {elements} {where}, expecting {count}")
        if elements < count:
            raise invalid(f"{request.label}expected {count} string elements {where}, got {elements}")

    def _empty_batch(self, request: InferenceRequest, spec: TensorSpec, shape: Shape) -> ModserveError:
        """Return the error for an empty batch. Triton counts it as one item with missing bytes."""
        missed = math.prod(abs(size) or 1 for size in shape[1:]) * (spec.datatype.size or 4)
        most = self.config.max_batch_size
        return invalid(
            f"{self._wrong_size(request, spec, missed, 0).message}: its shape {format_shape(shape)} begins with a "
            f"batch size of 0, which must be {'1' if most == 1 else f'1 to {most}'}"
        )

    def _make_shape_error(self, request: InferenceRequest, name: str, shape: Shape) -> ModserveError:
        return invalid(
            f"{request.label}All input dimensions should be specified for input '{name}' "
            f"for model '{self.config.name}', got {format_shape(shape)}"
        )

    def _unknown_input(self, name: str) -> ModserveError:
        names = ", ".join(f"'{known}'" for known in self._rules)
        return invalid(f"unexpected inference input '{name}' for model '{self.config.name}': its inputs are {names}")

    def _wrong_count(self, request: InferenceRequest) -> ModserveError:
        config = self.config
        required, most = config.required_input_count, len(config.inputs)
        expected = f"{most} inputs" if self._all_required else f"number of inputs between {required} and {most}"
        missing = [name for name in self._required if name not in request.inputs]
        return invalid(
            f"{request.label}expected {expected} but got {len(request.inputs)} inputs for model '{config.name}'. "
            f"Got input(s) {_names(request.inputs)}, but missing required input(s) {_names(missing)}. "
            "Please provide all required input(s)."
        )

    def _wrong_size(self, request: InferenceRequest, spec: TensorSpec, expected: int, got: int) -> ModserveError:
        return invalid(
            f"{request.label}input byte size mismatch for input '{spec.name}' for model '{self.config.name}'. "
            f"Expected {expected}, got {got}"
        )


def _item_bytes(spec: TensorSpec) -> int:
    """Return the bytes of one batch item; -1 for variable dims or BYTES."""
    fixed = -1 not in spec.dims and spec.datatype.size > 0
    return math.prod(spec.dims) * spec.datatype.size if fixed else -1


def _names(names: Iterable[str]) -> str:
    """Join the first names only, since a client may send thousands."""
    shown = [f"'{name}'" for name in islice(names, _SHOWN + 1)]
    if len(shown) > _SHOWN:
        shown[_SHOWN] = "..."
    return f"[{','.join(shown)}]"
