"""Adapter that runs a decorated function or class with the life cycle of a ``TritonPythonModel``.

Everything is written as coroutines. Coroutines for functions that are not ``async`` never wait, and `_run` drives them
without an event loop.
"""

import asyncio
import inspect
import itertools
import json
from typing import Any, AsyncIterator, Coroutine, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

import numpy as np

from . import failure, host
from .decorator import find
from .definition import Context, Definition, label_of, place
from .errors import ErrorCode, TritonError
from .function_values import Arrays, InvalidInputError, OutputError, arguments, by_name, output, stack_rows
from .response import COMPLETE_FINAL, InferenceResponse
from .tensor import Tensor

Outcome = Union[Dict[str, Any], Exception]
"""Outcome of a request: its outputs or its failure."""


def of_module(module: Any, own: Optional[failure.OwnFiles] = None) -> Optional[type]:
    """Return the class that runs the decorated object of a module; None if there is none. Raises TypeError for several.

    The object's files are added to the model's files `own`; if that is None, clients see all files.
    """
    definition = find(module)
    if definition is None:
        return None
    if own is not None:
        own.add_module(place(definition.target)[0], getattr(definition.target, "__module__", None) or "")
    return python_model(definition, own)


def python_model(definition: Definition, own: Optional[failure.OwnFiles]) -> type:
    """Return a ``TritonPythonModel`` class that runs a decorated object. `own` is as in `of_module`."""
    members: Dict[str, Any] = {"definition": definition, "own": own}
    if hasattr(definition.target, "is_ready") and isinstance(definition.target, type):
        members["is_ready"] = lambda self: self._object.is_ready()
    return type("TritonPythonModel", (_AsyncAdapter if definition.is_async else _SyncAdapter,), members)


class _Adapter:
    definition: Definition
    own: Optional[failure.OwnFiles]

    @classmethod
    def auto_complete_config(cls, config: Any) -> Any:
        """Complete the configuration from the declaration. A config.pbtxt must not contradict it."""
        definition = cls.definition
        config.set_max_batch_size(definition.options.max_batch_size)
        for each in definition.inputs:
            config.add_input(each.config())
        for each in definition.outputs:
            config.add_output(each.config())
        if definition.dynamic_batching is not None:
            config.set_dynamic_batching()
        if definition.streams:
            config.set_model_transaction_policy({"decoupled": True})
        return config

    def initialize(self, args: Dict[str, str]) -> None:
        """Instantiate a decorated class. Raises ValueError if the configuration does not fit the declaration."""
        definition = self.definition
        self._host = host.current()
        config = json.loads(args["model_config"])
        _compare(definition, config)
        for warning in _find_ignored(definition, config):
            self._host.log("WARNING", warning)
        self._object: Any = definition.target
        if isinstance(definition.target, type):
            self._object = definition.target(
                *([_context(definition, args, config)] if definition.takes_context else [])
            )
        self._function = getattr(self._object, definition.method) if definition.method else self._object

    def finalize(self) -> None:
        close = getattr(self._object, "close", None) if isinstance(self.definition.target, type) else None
        ending = close() if close is not None else None
        if inspect.iscoroutine(ending):
            asyncio.run(ending)

    async def _responses(self, requests: Sequence[Any]) -> "Optional[List[InferenceResponse]]":
        if self.definition.streams:
            await self._all(self._stream(request) for request in requests)
            return None
        arrays = [_arrays(request) for request in requests]
        outcomes: List[Any] = [None] * len(requests)

        async def run(group: List[int]) -> None:
            for index, outcome in zip(group, await self._outcomes([arrays[index] for index in group])):
                outcomes[index] = outcome

        await self._all(run(group) for group in self._groups(arrays))
        return [self._response(outcome) for outcome in outcomes]

    async def _all(self, coroutines: "Iterable[Coroutine[Any, Any, Any]]") -> "List[Any]":
        """Return the results of all coroutines: ``async`` functions run concurrently, others one after another."""
        if self.definition.is_async:
            return list(await asyncio.gather(*coroutines))
        return [await each for each in coroutines]

    def _groups(self, arrays: Sequence[Arrays]) -> List[List[int]]:
        """Group request numbers for execution: equal inputs and shapes run together if the model batches."""
        if not self.definition.batching or self.definition.by_row:
            return [[index] for index in range(len(arrays))]
        groups: Dict[Tuple[Any, ...], List[int]] = {}
        for index, each in enumerate(arrays):
            groups.setdefault(tuple((name, array.shape[1:]) for name, array in sorted(each.items())), []).append(index)
        return list(groups.values())

    async def _outcomes(self, group: List[Arrays]) -> List[Outcome]:
        """Run requests together; after a failure run each by itself, so that one does not fail the others."""
        try:
            return await self._together(group)
        except Exception as error:
            if len(group) == 1:
                return [error]
        return [outcome for each in group for outcome in await self._outcomes([each])]

    async def _together(self, group: List[Arrays]) -> List[Outcome]:
        rows = [len(next(iter(each.values()))) if each else 1 for each in group] if self.definition.batching else [1]
        merged = group[0]
        if len(group) > 1:
            merged = {name: np.concatenate([each[name] for each in group]) for name in group[0]}
        outputs = await self._outputs(merged, sum(rows))
        if len(group) == 1:
            return [outputs]
        ends = itertools.accumulate(rows)
        return [{name: array[end - count : end] for name, array in outputs.items()} for count, end in zip(rows, ends)]

    async def _outputs(self, arrays: Arrays, rows: int) -> Dict[str, Any]:
        """Return the outputs for inputs of `rows` rows."""
        definition = self.definition
        if definition.by_row:
            values = await self._all(self._call(arrays, row) for row in range(rows))
            return {each.name: stack_rows(each, [value[each.name] for value in values]) for each in definition.outputs}
        single = await self._call(arrays)
        return {each.name: output(each, single[each.name], rows, definition.batching) for each in definition.outputs}

    async def _call(self, arrays: Arrays, row: Optional[int] = None) -> Dict[str, Any]:
        returned = self._function(**arguments(self.definition.inputs, arrays, row))
        return by_name(self.definition.outputs, await returned if inspect.isawaitable(returned) else returned)

    def _response(self, outcome: Outcome) -> InferenceResponse:
        if isinstance(outcome, Exception):
            return InferenceResponse(error=self._failure(outcome))
        return InferenceResponse([Tensor(name, array) for name, array in outcome.items()])

    def _failure(self, error: Exception) -> TritonError:
        """Return the error for the client. The traceback is logged if the failure is the model's own."""
        if isinstance(error, TritonError):
            return error
        if isinstance(error, InvalidInputError):
            return TritonError(str(error), ErrorCode.INVALID_ARG)
        if isinstance(error, OutputError):
            label = label_of(self.definition.target, str if self.own is None else self.own.name)
            return TritonError(f"{label}: {error}")
        report = failure.of_exception(error, "", self.own)
        self._host.log("ERROR", report.traceback)
        return TritonError(report.message, ErrorCode[report.code])

    async def _stream(self, request: Any) -> None:
        """Send a response for each value that a generator yields, until the request is cancelled."""
        sender = request.get_response_sender()
        definition, fields = self.definition, self.definition.outputs
        try:
            values = _each(self._function(**arguments(definition.inputs, _arrays(request))))
            try:
                async for value in values:
                    if request.is_cancelled():
                        break
                    named = by_name(fields, value)
                    outputs = {each.name: output(each, named[each.name], None, definition.batching) for each in fields}
                    await self._send(sender, self._response(outputs))
            finally:
                await values.aclose()  # type: ignore[attr-defined]
        except Exception as error:
            await self._send(sender, self._response(error), COMPLETE_FINAL)
        else:
            await self._send(sender, None, COMPLETE_FINAL)

    async def _send(self, sender: Any, response: Optional[InferenceResponse], flags: int = 0) -> None:
        """Send a response. Waiting for a slow client must not block other requests on an event loop."""
        if self.definition.is_async and not flags:
            await asyncio.get_running_loop().run_in_executor(None, sender.send, response, flags)
        else:
            sender.send(response, flags)


class _SyncAdapter(_Adapter):
    def execute(self, requests: Sequence[Any]) -> "Optional[List[InferenceResponse]]":
        responses: Optional[List[InferenceResponse]] = _run(self._responses(requests))
        return responses


class _AsyncAdapter(_Adapter):
    async def execute(self, requests: Sequence[Any]) -> "Optional[List[InferenceResponse]]":
        return await self._responses(requests)


def _run(coroutine: "Coroutine[Any, Any, Any]") -> Any:
    """Run a coroutine that never waits, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise TypeError("the function returned an awaitable without being declared 'async def'; expected its result")


async def _each(values: Any) -> "AsyncIterator[Any]":
    if inspect.isawaitable(values):
        values = await values
    try:
        if hasattr(values, "__aiter__"):
            async for value in values:
                yield value
        else:
            for value in values:
                yield value
    finally:
        if hasattr(values, "aclose"):
            await values.aclose()
        elif hasattr(values, "close"):
            values.close()


def _arrays(request: Any) -> Dict[str, Any]:
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def _context(definition: Definition, args: Dict[str, str], config: Dict[str, Any]) -> Context:
    return Context(
        args["model_name"],
        int(args["model_version"]),
        definition.directory,
        args["model_instance_name"],
        args["model_instance_kind"],
        int(args["model_instance_device_id"]),
        config,
    )


def _compare(definition: Definition, config: Dict[str, Any]) -> None:
    """Compare the configuration with the declaration. Raises ValueError if they contradict each other."""
    size, declared = config.get("max_batch_size", 0), definition.options.max_batch_size
    if (size > 0) != (declared > 0):
        raise ValueError(
            f"the configuration has max_batch_size {size}, the declaration {declared}: one is a batch model"
        )
    for what, fields in (("input", definition.inputs), ("output", definition.outputs)):
        names = {each.name for each in fields}
        for each in config.get(what, []):
            if each["name"] not in names:
                listed = ", ".join(sorted(names))
                raise ValueError(f"the configuration has {what} '{each['name']}'; the declaration has {listed}")


def _find_ignored(definition: Definition, config: Dict[str, Any]) -> Iterator[str]:
    """Yield warnings about options of a declaration that only a config.pbtxt can set in a model repository."""
    mode = config.get("parameters", {}).get("EXECUTION_MODE", {}).get("string_value", "process")
    if definition.isolation not in ("process", mode):
        isolation = f"isolation='{definition.isolation}'"
        yield f"{isolation} has no effect in a model repository: its config.pbtxt says EXECUTION_MODE"
    count = sum(group.get("count", 1) for group in config.get("instance_group", []))
    if definition.options.instances not in (1, count) and isinstance(definition.options.instances, int):
        yield "instances has no effect in a model repository: its config.pbtxt has instance_group"
