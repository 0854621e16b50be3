"""The names that code for `tritonclient` uses, for any target of `modserve.connect`.

Such code changes one line: ``from modserve import triton_client as httpclient`` in place of ``import tritonclient.http
as httpclient`` (or ``tritonclient.grpc``). `tritonclient` need not be installed. If it is, its own `InferInput` and
`InferRequestedOutput` are accepted too, and failures are its `InferenceServerException`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from .client.errors import ClientError
from .client.values import ModelMetadata, Result
from .core.errors import Code
from .core.requests.request import ParameterValue
from .core.tensors import dtypes
from .core.tensors.tensor import Array, Tensor, format_shape
from .library.connecting import Target, connect


class InferenceServerException(Exception):
    """A failure: what the server said, and its status."""

    def __init__(self, msg: str, status: str | None = None, debug_details: object = None) -> None:
        super().__init__(msg)
        self._msg, self._status, self._debug_details = msg, status, debug_details

    def __str__(self) -> str:
        return self._msg if self._status is None else f"[{self._status}] {self._msg}"

    def message(self) -> str:
        return self._msg

    def status(self) -> str | None:
        return self._status

    def debug_details(self) -> object:
        return self._debug_details


if not TYPE_CHECKING:
    with suppress(ImportError):
        from tritonclient.utils import InferenceServerException


class InferInput:
    """An input of a request. `shape` and `datatype` are in the protocol's form."""

    def __init__(self, name: str, shape: Sequence[int], datatype: str) -> None:
        self._name = name
        self._shape = tuple(shape)
        self._datatype = datatype
        self._array: Array | None = None

    def name(self) -> str:
        return self._name

    def datatype(self) -> str:
        return self._datatype

    def shape(self) -> list[int]:
        return list(self._shape)

    def set_shape(self, shape: Sequence[int]) -> "InferInput":
        self._shape = tuple(shape)
        return self

    def set_data_from_numpy(self, input_tensor: Array, binary_data: bool = True) -> "InferInput":
        """Raises InferenceServerException for an array with another shape or datatype."""
        datatype = dtypes.from_numpy(input_tensor.dtype)
        if datatype is None or datatype.name != self._datatype:
            name = input_tensor.dtype if datatype is None else datatype.name
            raise InferenceServerException(
                f"got unexpected datatype {name} from numpy array, expected {self._datatype}"
            )
        if input_tensor.shape != self._shape:
            got, expected = format_shape(input_tensor.shape), format_shape(self._shape)
            raise InferenceServerException(f"got unexpected numpy array shape {got}, expected {expected}")
        self._array = input_tensor
        return self

    def tensor(self) -> Tensor:
        if self._array is None:
            raise InferenceServerException(f"input '{self._name}' has no data: call set_data_from_numpy")
        return Tensor.from_array(self._array)


class InferRequestedOutput:
    """An output to return."""

    def __init__(self, name: str, binary_data: bool = True, class_count: int = 0) -> None:
        if class_count:
            raise InferenceServerException("this client does not support classes: compute them from the output")
        self._name = name

    def name(self) -> str:
        return self._name


class InferResult:
    """The outputs of a request."""

    def __init__(self, result: Result) -> None:
        self._result = result

    def as_numpy(self, name: str) -> Array | None:
        """The output with this name, or None."""
        return self._result.get(name)

    def get_output(self, name: str) -> dict[str, Any] | None:
        if name not in self._result:
            return None
        return {"name": name, "datatype": self._result.datatype(name), "shape": list(self._result[name].shape)}

    def get_response(self) -> dict[str, Any]:
        result = self._result
        response: dict[str, Any] = {"model_name": result.model, "model_version": str(result.version or "")}
        response |= {"id": result.id} if result.id else {}
        response |= {"parameters": result.parameters} if result.parameters else {}
        return response | {"outputs": [self.get_output(name) for name in result]}


class InferenceServerClient:
    """A server, with the methods of `tritonclient.http`. `url` is anything that `modserve.connect` accepts.

    An address without a scheme, as in `tritonclient`, means HTTP. Methods raise InferenceServerException.
    """

    def __init__(
        self,
        url: Target,
        verbose: bool = False,
        *,
        network_timeout: float | None = 60.0,
        ssl: bool = False,
        **options: Any,
    ) -> None:
        if isinstance(url, str) and "://" not in url and ":" in url and not Path(url).exists():
            url = f"{'https' if ssl else 'http'}://{url}"
        with _failures():
            self._client = connect(url, timeout=network_timeout, **options)

    def __enter__(self) -> "InferenceServerClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def is_server_live(self, **_: Any) -> bool:
        with _failures():
            return self._client.live()

    def is_server_ready(self, **_: Any) -> bool:
        with _failures():
            return self._client.ready()

    def is_model_ready(self, model_name: str, model_version: str = "", **_: Any) -> bool:
        with _failures():
            return self._client.model_ready(model_name, _version(model_version))

    def get_server_metadata(self, **_: Any) -> dict[str, Any]:
        with _failures():
            return self._client.server()

    def get_model_metadata(self, model_name: str, model_version: str = "", **_: Any) -> dict[str, Any]:
        with _failures():
            return _as_json(self._client.metadata(model_name, _version(model_version)))

    def get_model_config(self, model_name: str, model_version: str = "", **_: Any) -> dict[str, Any]:
        with _failures():
            return self._client.config(model_name, _version(model_version))

    def get_model_repository_index(self, **_: Any) -> list[dict[str, Any]]:
        with _failures():
            return self._client.models()

    def get_inference_statistics(self, model_name: str, model_version: str = "", **_: Any) -> dict[str, Any]:
        with _failures():
            return {"model_stats": self._client.statistics(model_name, _version(model_version))}

    def load_model(self, model_name: str, *, config: str | None = None, **_: Any) -> None:
        with _failures():
            self._client.load(model_name, config=config)

    def unload_model(self, model_name: str, **_: Any) -> None:
        with _failures():
            self._client.unload(model_name)

    def infer(
        self,
        model_name: str,
        inputs: Sequence[Any],
        model_version: str = "",
        outputs: Sequence[Any] | None = None,
        request_id: str = "",
        sequence_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
        priority: int = 0,
        timeout: int | None = None,
        client_timeout: float | None = None,
        parameters: Mapping[str, ParameterValue] | None = None,
        **_: Any,
    ) -> InferResult:
        """Run one inference. `timeout` (microseconds) limits the wait in the queue, `client_timeout` (seconds) the
        whole call.
        """
        values: dict[str, ParameterValue] = dict(parameters or {})
        if sequence_id:
            values |= {"sequence_id": sequence_id, "sequence_start": sequence_start, "sequence_end": sequence_end}
        values |= {"priority": priority} if priority else {}
        values |= {"timeout": timeout} if timeout else {}
        with _failures():
            return InferResult(
                self._client.infer(
                    model_name,
                    {each.name(): _tensor(each) for each in inputs},
                    outputs=[_requested(each) for each in outputs or ()],
                    version=_version(model_version),
                    request_id=request_id,
                    parameters=values,
                    timeout=client_timeout,
                )
            )


def _tensor(tensor: Any) -> Tensor:
    """From our `InferInput`, or one of `tritonclient`'s, for HTTP or gRPC."""
    if isinstance(tensor, InferInput):
        return tensor.tensor()
    name, datatype, shape = tensor.name(), dtypes.BY_NAME[tensor.datatype()], tuple(tensor.shape())
    raw = tensor._get_binary_data() if hasattr(tensor, "_get_binary_data") else tensor._get_content()
    if raw is not None:
        return Tensor.from_raw(datatype, shape, raw)
    described = tensor._get_tensor()
    data = described.get("data") if isinstance(described, dict) else None
    if data is None:
        _refuse(f"input '{name}' has no data; this client does not support shared memory")
    return Tensor.from_array(np.array(data, dtype=datatype.numpy).reshape(shape), datatype)


def _requested(tensor: Any) -> str:
    """The name of an output. Raises for classes and shared memory, which results cannot represent."""
    described = None if isinstance(tensor, InferRequestedOutput) else tensor._get_tensor()
    keys = described.get("parameters", {}) if isinstance(described, dict) else getattr(described, "parameters", {})
    if "classification" in keys or "shared_memory_region" in keys:
        _refuse(f"output '{tensor.name()}': this client supports neither classes nor shared memory")
    return str(tensor.name())


def _version(text: str) -> int | None:
    if text and not text.isdigit():
        _refuse(f"model version '{text}' is not a number")
    return int(text) if text else None


def _as_json(metadata: ModelMetadata) -> dict[str, Any]:
    inputs, outputs = (
        [{"name": each.name, "datatype": each.datatype, "shape": list(each.shape)} for each in tensors]
        for tensors in (metadata.inputs, metadata.outputs)
    )
    versions = list(metadata.versions)
    return {
        "name": metadata.name,
        "versions": versions,
        "platform": metadata.platform,
        "inputs": inputs,
        "outputs": outputs,
    }


def _refuse(message: str) -> NoReturn:
    raise ClientError(Code.UNSUPPORTED, message)


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        status = None if error.status is None else str(error.status)
        raise InferenceServerException(error.message, status=status) from error
