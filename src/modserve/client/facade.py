"""`Client` and `AsyncClient`: the public API, independent of the transport."""

from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import aclosing, closing
from types import TracebackType
from typing import Any, Self

from modserve.core.errors import Code, ModserveError
from modserve.core.requests.request import ParameterValue

from . import input_values, transport
from .errors import ClientError
from .input_values import ClientCall, ModelMetadata, Result, Value
from .transport import AsyncTransport, ControlCall, Transport

_WRONG = (Code.INVALID_ARG, Code.NOT_FOUND)


class _Base:
    """Common part of both clients: cached model metadata and the default timeout."""

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self._known: dict[tuple[str, int | None], ModelMetadata] = {}

    def _patience(self, timeout: float | None) -> float | None:
        chosen = self._timeout if timeout is None else timeout
        if chosen is not None and not chosen > 0:
            raise ClientError(Code.INVALID_ARG, f"timeout is {chosen}, expected a number of seconds above 0, or inf")
        return None if chosen == float("inf") else chosen

    def _call(
        self,
        model: str,
        inputs: Mapping[str, Value],
        outputs: Sequence[str],
        version: int | None,
        request_id: str,
        parameters: Mapping[str, ParameterValue] | None,
        timeout: float | None,
    ) -> ClientCall:
        try:
            tensors = input_values.to_tensors(inputs, self._known.get((model, version)))
        except ClientError:
            self._forget(model)  # the model may have changed
            raise
        except ModserveError as error:
            raise ClientError(error.code, error.message) from None
        return ClientCall(model, version, tensors, tuple(outputs), request_id, parameters, self._patience(timeout))

    def _forget(self, model: str) -> None:
        for key in [key for key in self._known if key[0] == model]:
            del self._known[key]

    def _on_failure(self, model: str, error: ClientError) -> None:
        if error.code in _WRONG:
            self._forget(model)


def _remove_mark(result: Result) -> Result:
    """Remove the protocol's marker of the final response; the end of the iteration replaces it."""
    result.parameters.pop(input_values.FINAL, None)
    return result


class Client(_Base):
    """Client of a server. Created by `modserve.connect`; use it in a ``with`` block, or call `close`.

    Several threads may share a client. All methods raise `ClientError`. `timeout` covers the whole call, in seconds. It
    defaults to the timeout of `connect`; infinity means no limit.
    """

    def __init__(self, transport: Transport, timeout: float | None = None) -> None:
        super().__init__(timeout)
        self._transport = transport

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. If this client started the server, the server finishes its requests and stops."""
        self._transport.close()

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Value],
        *,
        outputs: Sequence[str] = (),
        version: int | None = None,
        request_id: str = "",
        parameters: Mapping[str, ParameterValue] | None = None,
        timeout: float | None = None,
    ) -> Result:
        """Run one inference.

        Arrays are sent unchanged and include the batch dimension, if the model has one. Only float64 and int64 arrays,
        numpy's default types, are converted to the model's datatype. Numbers, texts, lists and data frames become
        arrays of the model's datatype, with missing leading dimensions of 1. `outputs` names the outputs to return and
        defaults to all. `version` defaults to the latest.
        """
        self._learn(model, version, inputs, timeout)
        call = self._call(model, inputs, outputs, version, request_id, parameters, timeout)
        try:
            return self._transport.infer(call)
        except ClientError as error:
            self._on_failure(model, error)
            raise

    def stream(
        self,
        model: str,
        inputs: Mapping[str, Value],
        *,
        outputs: Sequence[str] = (),
        version: int | None = None,
        request_id: str = "",
        parameters: Mapping[str, ParameterValue] | None = None,
        timeout: float | None = None,
    ) -> Generator[Result]:
        """Run one inference and iterate over its responses as they arrive. Decoupled models send any number of them.

        Takes the same arguments as `infer`. Closing the iterator cancels the request.
        """
        self._learn(model, version, inputs, timeout)
        return self._stream(self._call(model, inputs, outputs, version, request_id, parameters, timeout))

    def _stream(self, call: ClientCall) -> Generator[Result]:
        try:
            with closing(self._transport.stream(call)) as results:
                for result in results:
                    yield _remove_mark(result)
        except ClientError as error:
            self._on_failure(call.model, error)
            raise

    def generate(
        self, model: str, fields: Mapping[str, Value], *, version: int | None = None, timeout: float | None = None
    ) -> dict[str, Any]:
        """Run one inference on plain values, for example for text models. Outputs are texts, numbers, or lists of them.

        `fields` that are not inputs become parameters of the request.
        """
        inputs, parameters = input_values.split(fields, self.metadata(model, version, timeout=timeout))
        return input_values.to_dict(self.infer(model, inputs, version=version, parameters=parameters, timeout=timeout))

    def generate_stream(
        self, model: str, fields: Mapping[str, Value], *, version: int | None = None, timeout: float | None = None
    ) -> Generator[dict[str, Any]]:
        """Run one inference on plain values like `generate`, and yield its responses as they arrive."""
        inputs, parameters = input_values.split(fields, self.metadata(model, version, timeout=timeout))
        stream = self.stream(model, inputs, version=version, parameters=parameters, timeout=timeout)
        return input_values.each(stream)

    def _learn(self, model: str, version: int | None, inputs: Mapping[str, Value], timeout: float | None) -> None:
        if input_values.needs_metadata(inputs):
            self.metadata(model, version, timeout=timeout)

    def metadata(self, model: str, version: int | None = None, *, timeout: float | None = None) -> ModelMetadata:
        """Return a model's metadata. Cached until a request is invalid."""
        known = self._known.get((model, version))
        if known is None:
            known = input_values.metadata_of(self._control(transport.METADATA, model, version, timeout=timeout))
            self._known[model, version] = known
        return known

    def live(self) -> bool:
        """Return True if the server is running."""
        return bool(self._control(transport.LIVE))

    def ready(self) -> bool:
        """Return True if the server and all its models accept requests."""
        return bool(self._control(transport.READY))

    def model_ready(self, model: str, version: int | None = None) -> bool:
        """Return True if a model accepts requests; False also if it does not exist."""
        return bool(self._control(transport.MODEL_READY, model, version))

    def server(self) -> dict[str, Any]:
        """Return the server's ``name``, ``version`` and ``extensions``."""
        return dict(self._control(transport.SERVER))

    def models(self) -> list[dict[str, Any]]:
        """Return all model versions: ``name``, ``version``, ``state``, and a ``reason`` unless the state is READY."""
        return list(self._control(transport.INDEX))

    def config(self, model: str, version: int | None = None) -> dict[str, Any]:
        """Return the model's completed configuration."""
        return dict(self._control(transport.CONFIG, model, version))

    def statistics(self, model: str, version: int | None = None) -> list[dict[str, Any]]:
        """Return counts and durations of each version since it was loaded."""
        return list(self._control(transport.STATISTICS, model, version)["model_stats"])

    def load(self, model: str, *, config: str | None = None, timeout: float | None = None) -> None:
        """Load or reload a model. It is READY on return. Requires the model control mode ``explicit``."""
        self._forget(model)
        self._control(transport.LOAD, model, parameters=None if config is None else {"config": config}, timeout=timeout)

    def unload(self, model: str, *, timeout: float | None = None) -> None:
        """Unload a model."""
        self._forget(model)
        self._control(transport.UNLOAD, model, timeout=timeout)

    def _control(
        self,
        operation: transport.Operation,
        model: str = "",
        version: int | None = None,
        parameters: transport.Parameters | None = None,
        timeout: float | None = None,
    ) -> Any:
        return self._transport.call(ControlCall(operation, model, version, parameters, self._patience(timeout)))


class AsyncClient(_Base):
    """Client of a server, for one event loop. Created by `modserve.connect_async`; use it in an ``async with`` block.

    Alternatively, await `start` and finally `close`. It has the same calls as `Client`. Cancelling a call cancels its
    request.
    """

    def __init__(self, transport: AsyncTransport, timeout: float | None = None) -> None:
        super().__init__(timeout)
        self._transport = transport

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the server, if it is one inside this process and not running yet."""
        await self._transport.start()

    async def close(self) -> None:
        """Close the connections. If this client started the server, the server finishes its requests and stops."""
        await self._transport.close()

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, Value],
        *,
        outputs: Sequence[str] = (),
        version: int | None = None,
        request_id: str = "",
        parameters: Mapping[str, ParameterValue] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - it goes to the server as well
    ) -> Result:
        """Run one inference; see `Client.infer`."""
        await self._learn(model, version, inputs, timeout)
        call = self._call(model, inputs, outputs, version, request_id, parameters, timeout)
        try:
            return await self._transport.infer(call)
        except ClientError as error:
            self._on_failure(model, error)
            raise

    async def stream(
        self,
        model: str,
        inputs: Mapping[str, Value],
        *,
        outputs: Sequence[str] = (),
        version: int | None = None,
        request_id: str = "",
        parameters: Mapping[str, ParameterValue] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - it goes to the server as well
    ) -> AsyncGenerator[Result]:
        """Yield the responses; see `Client.stream`. Use `contextlib.aclosing` if you leave it early."""
        await self._learn(model, version, inputs, timeout)
        call = self._call(model, inputs, outputs, version, request_id, parameters, timeout)
        try:
            async with aclosing(self._transport.stream(call)) as results:
                async for result in results:
                    yield _remove_mark(result)
        except ClientError as error:
            self._on_failure(model, error)
            raise

    async def generate(
        self,
        model: str,
        fields: Mapping[str, Value],
        *,
        version: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> dict[str, Any]:
        """Run one inference by fields; see `Client.generate`."""
        inputs, parameters = input_values.split(fields, await self.metadata(model, version, timeout=timeout))
        return input_values.to_dict(
            await self.infer(model, inputs, version=version, parameters=parameters, timeout=timeout)
        )

    async def generate_stream(
        self,
        model: str,
        fields: Mapping[str, Value],
        *,
        version: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> AsyncGenerator[dict[str, Any]]:
        """Yield the responses to fields; see `Client.generate_stream`."""
        inputs, parameters = input_values.split(fields, await self.metadata(model, version, timeout=timeout))
        stream = self.stream(model, inputs, version=version, parameters=parameters, timeout=timeout)
        async with aclosing(stream) as results:
            async for result in results:
                yield input_values.to_dict(result)

    async def _learn(
        self, model: str, version: int | None, inputs: Mapping[str, Value], patience: float | None
    ) -> None:
        if input_values.needs_metadata(inputs):
            await self.metadata(model, version, timeout=patience)

    async def metadata(
        self,
        model: str,
        version: int | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> ModelMetadata:
        """Return the metadata; see `Client.metadata`."""
        known = self._known.get((model, version))
        if known is None:
            known = input_values.metadata_of(await self._control(transport.METADATA, model, version, patience=timeout))
            self._known[model, version] = known
        return known

    async def live(self) -> bool:
        """Return True if the server is running; see `Client` for this and the following methods."""
        return bool(await self._control(transport.LIVE))

    async def ready(self) -> bool:
        return bool(await self._control(transport.READY))

    async def model_ready(self, model: str, version: int | None = None) -> bool:
        return bool(await self._control(transport.MODEL_READY, model, version))

    async def server(self) -> dict[str, Any]:
        return dict(await self._control(transport.SERVER))

    async def models(self) -> list[dict[str, Any]]:
        return list(await self._control(transport.INDEX))

    async def config(self, model: str, version: int | None = None) -> dict[str, Any]:
        return dict(await self._control(transport.CONFIG, model, version))

    async def statistics(self, model: str, version: int | None = None) -> list[dict[str, Any]]:
        return list((await self._control(transport.STATISTICS, model, version))["model_stats"])

    async def load(
        self,
        model: str,
        *,
        config: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> None:
        self._forget(model)
        parameters = None if config is None else {"config": config}
        await self._control(transport.LOAD, model, parameters=parameters, patience=timeout)

    async def unload(self, model: str, *, timeout: float | None = None) -> None:  # noqa: ASYNC109
        self._forget(model)
        await self._control(transport.UNLOAD, model, patience=timeout)

    async def _control(
        self,
        operation: transport.Operation,
        model: str = "",
        version: int | None = None,
        parameters: transport.Parameters | None = None,
        patience: float | None = None,
    ) -> Any:
        return await self._transport.call(ControlCall(operation, model, version, parameters, self._patience(patience)))
