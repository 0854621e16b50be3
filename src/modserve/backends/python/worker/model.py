"""The life cycle of a model.py: loaded, completed, initialized, executed, finalized.

A model's code may raise anything, SystemExit too: this module raises it as `ModelError`.
"""

import asyncio
import contextlib
import inspect
import json
import os
from types import ModuleType
from typing import Any, Callable, Coroutine, Dict, List, Optional, Sequence

from . import adapter, failure, host, modules
from .errors import ErrorCode, ModelError, TritonError
from .model_config import ModelConfig
from .request import InferenceRequest
from .response import InferenceResponse

CLASS = "TritonPythonModel"
TURN, ROOM = "modserve_turn", "modserve_room"
"""Members of the server's own programs in addition to Triton's methods."""

Responses = List[Optional[InferenceResponse]]


def load(
    path: str,
    name: str,
    of_host: Optional[host.Host],
    *,
    isolated: bool = False,
    search_paths: Sequence[str] = (),
    full_errors: bool = False,
) -> "LoadedModel":
    """Run the model.py at `path`. `name` is the model's, for messages. A decorated object in it may be the model, too.

    `isolated` is for a process with several models: each then has its own modules next to its model.py.
    `search_paths` are more directories for its modules. With `full_errors`, the caller of `execute` gets all places of
    an exception with their paths, as in Triton, and not only those in the model's own files. Raises `ModelError`.
    """
    scope = modules.Scope(path, of_host, isolated, search_paths)
    own = None if full_errors else failure.OwnFiles(scope.directories)
    with _ModelContext(of_host if isolated else None):
        failed = None
        try:
            module = scope.run()
            kind = getattr(module, CLASS, None) or adapter.of_module(module, own)
        except BaseException as error:
            failed = failure.of_exception(error, "")
    if failed is not None:
        raise failed
    if kind is None:
        raise ModelError("INVALID_ARG", f"{path} has no class {CLASS}")
    if not isinstance(kind, type):
        raise ModelError("INVALID_ARG", f"{path}: {CLASS} is not a class but {type(kind).__name__}")
    return LoadedModel(module, kind, path, name, of_host, scope, own)


class _ModelContext:
    """Context in which this thread runs code of the model with a host. None changes nothing."""

    __slots__ = ("_host",)

    def __init__(self, of_host: Optional[host.Host]) -> None:
        self._host = of_host

    def __enter__(self) -> None:
        if self._host is not None:
            host.set_of_thread(self._host)

    def __exit__(self, *exception: object) -> None:
        if self._host is not None:
            host.set_of_thread(None)


class LoadedModel:
    """An instance of a model's class. One thread at a time, except for `is_ready` and `execute_async`."""

    def __init__(
        self,
        module: ModuleType,
        kind: type,
        path: str,
        name: str,
        of_host: Optional[host.Host],
        scope: modules.Scope,
        own: Optional[failure.OwnFiles],
    ) -> None:
        self.module = module
        self.path = path
        self.name = name
        self.is_async = False
        self.has_is_ready = False
        self.is_ready_is_async = False
        self.has_turns = False
        self.stopping = False
        """True if its host is about to cancel its tasks."""
        self.room = 0
        """Limit of requests without a final response that the server gives; 0 if only executions count."""
        self._class = kind
        self._scope = scope
        self._own = own
        self._host = of_host
        self._of = _ModelContext(of_host if scope.isolated else None)
        self._instance: Any = None
        self._initialized = False
        self._execute: Callable[[List[InferenceRequest]], Any] = _not_initialized
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._before = f"Failed to process the request(s) for model '{name}', message: "

    def auto_complete_config(self, config_json: str) -> Optional[str]:
        """Return the configuration as the model completes it, both as JSON; None if it has no such method."""
        complete = self._run(lambda: getattr(self._class, "auto_complete_config", None), "auto_complete_config")
        if complete is None:
            return None
        config = self._run(lambda: complete(ModelConfig(config_json)), "auto_complete_config")
        if not isinstance(config, ModelConfig):
            raise ModelError(
                "INVALID_ARG",
                f"auto_complete_config function in model '{self.name}' must return a valid pb.ModelConfig object, not "
                f"{type(config).__name__} ({self._place('auto_complete_config')})",
            )
        return str(self._run(lambda: json.dumps(config._model_config), "auto_complete_config"))

    def initialize(self, arguments: Dict[str, str]) -> None:
        """Make the instance, and call its `initialize` if it has one."""
        self._instance = self._run(self._class, "__init__")
        self._run(lambda: self._initialize(arguments), "initialize")

    def _initialize(self, arguments: Dict[str, str]) -> None:
        initialize = getattr(self._instance, "initialize", None)
        if initialize is not None:
            initialize(arguments)
        self._initialized = True
        is_ready = getattr(self._instance, "is_ready", None)
        self.has_is_ready = callable(is_ready)
        self.is_ready_is_async = inspect.iscoroutinefunction(is_ready)
        self.has_turns = hasattr(self._instance, TURN)
        self.room = int(getattr(self._instance, ROOM, 0))
        execute = self._find_execute()
        self.is_async = inspect.iscoroutinefunction(execute) or inspect.iscoroutinefunction(
            getattr(execute, "__call__", None)  # noqa: B004
        )
        self._execute = execute

    def _find_execute(self) -> Callable[[List[InferenceRequest]], Any]:
        execute: Any = getattr(self._instance, "execute", None)
        if execute is None:
            raise ModelError("INVALID_ARG", f"Python model {self.path} does not implement `execute` method.")
        if not callable(execute):
            raise ModelError(
                "INVALID_ARG", f"{self.path}: `execute` of {CLASS} is not a method but {type(execute).__name__}"
            )
        signature = _signature(execute)
        if signature is not None and not _takes_one(signature):
            raise ModelError(
                "INVALID_ARG",
                f"`execute` must take the list of requests, as in `def execute(self, requests)`; it is "
                f"`execute{signature}` ({self._place('execute')})",
            )
        return execute  # type: ignore[no-any-return]

    def execute(self, requests: List[InferenceRequest]) -> Responses:
        """Run the requests. Each element is the one response to its request, or None where the server has heard of it
        through the request's sender, will hear through it, or runs the request again.

        After a `ModelError`, none of the requests can send anything any more: all that have no final response fail.
        """
        try:
            with self._of:
                returned = self._execute(list(requests))  # which is the model's to change
                if type(returned) is not list and inspect.iscoroutine(returned):
                    returned = self._complete(returned)
            return self.settle(requests, returned)
        except BaseException as error:
            failed, returned = self._failure(error, self._before, "execute"), None
        _end(requests)
        del requests  # the error's traceback has this frame
        raise failed

    async def execute_async(self, requests: List[InferenceRequest]) -> Responses:
        """Run `execute` of a model that has it as a coroutine function. Several may run at a time.

        A model may cancel its own task; only if it is `stopping`, the cancellation goes on from here.
        """
        try:
            returned = await self._execute(list(requests))
            return self.settle(requests, returned, is_coroutine=True)
        except BaseException as error:
            if self.stopping and isinstance(error, asyncio.CancelledError):
                raise
            failed, returned = self._failure(error, self._before, "execute"), None
        _end(requests)
        del requests  # the error's traceback has this frame
        raise failed

    def settle(self, requests: List[InferenceRequest], returned: Any, *, is_coroutine: bool = False) -> Responses:
        """Return the responses from `execute`, as the server reads them. Raises ModelError if it returned no such list.

        A response that cannot be read fails its own request: an object of the model's own class may raise anything.
        """
        if returned is None:
            responses: Responses = [None] * len(requests)
        elif requests and requests[0].decoupled:
            if not is_coroutine:
                text = "is using the decoupled mode and the execute function must return None."
                raise self._refusal(f"Python model '{self.name}' {text}")
            responses = [None] * len(requests)
        else:
            self._check(requests, returned)
            responses = [None if one is None else self._seal(request, one) for request, one in zip(requests, returned)]
        for request, response in zip(requests, responses):
            if response is None:
                if request.is_rescheduled():
                    request.reschedule()
                else:
                    request.get_response_sender()  # which owes an end from here on
        return responses

    def _check(self, requests: List[InferenceRequest], returned: Any) -> None:
        if not isinstance(returned, list):
            raise self._refusal(f"Expected a list in the execute return, found type '{type(returned)}'.")
        if len(returned) != len(requests):
            raise self._refusal(
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                f"InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(returned)}\n"
            )
        for request, response in zip(requests, returned):
            if response is None or (isinstance(response, InferenceResponse) and not request.is_rescheduled()):
                continue
            kind, which = "an 'InferenceResponse'", ""
            if request.is_rescheduled():
                kind, which = "a None", " for reschduled request"
            raise self._refusal(
                f"Expected {kind} object in the execute function return list{which}, found type '{type(response)}'."
            )

    def _seal(self, request: InferenceRequest, response: InferenceResponse) -> InferenceResponse:
        try:
            sealed = response.seal(request._names)
            if not sealed._tensors and sealed._error is None and (outputs := response.output_tensors()):
                names, requested = [tensor._name for tensor in outputs], list(request._names)
                raise self._refusal(
                    f"The response has the outputs {names}, and none of those that were requested: {requested}."
                )
            if request._sender is not None:
                request._sender.count(True, True)
            request._ended = True
            return sealed
        except BaseException as error:
            failed = self._failure(error, self._before, "execute")
        request.end()
        if failed.traceback and self._host is not None:
            self._host.log("ERROR", failed.traceback)
        return InferenceResponse.make_unchecked([], TritonError(failed.message, ErrorCode[failed.code]))

    def _refusal(self, text: str) -> ModelError:
        return ModelError("INTERNAL", self._before + text)

    def is_ready(self) -> bool:
        """Return the model's own answer; True if it has none. Not for threads where an event loop runs."""
        if not self.has_is_ready:
            return True

        def ready() -> Any:
            returned = self._instance.is_ready()
            return asyncio.run(returned) if inspect.iscoroutine(returned) else returned

        return self._readiness(self._run(ready, "is_ready"))

    async def is_ready_async(self) -> bool:
        """Run `is_ready` on the running event loop."""
        if not self.has_is_ready:
            return True
        is_ready = self._run(self._instance.is_ready, "")
        if inspect.iscoroutine(is_ready):
            try:
                is_ready = await is_ready
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                is_ready = failure.of_exception(error, "")
        if isinstance(is_ready, ModelError):
            raise is_ready
        return self._readiness(is_ready)

    def _readiness(self, is_ready: object) -> bool:
        if not isinstance(is_ready, bool):
            raise ModelError(
                "INTERNAL",
                f"is_ready() must return a boolean value, not {type(is_ready).__name__} ({self._place('is_ready')})",
            )
        return is_ready

    def turn(self) -> bool:
        """Let the model do a part of its work between executions; returns whether there is more."""
        return bool(self._run(getattr(self._instance, TURN), TURN))

    def finalize(self) -> None:
        """Call `finalize` if there is one and `initialize` has succeeded, and let go of the instance."""
        try:
            if self._initialized:
                self._run(lambda: getattr(self._instance, "finalize", _nothing)(), "finalize")
        finally:
            self._execute = _not_initialized
            self._instance = None
            if self._loop is not None:
                self._loop.close()
            self._scope.close()

    def _run(self, function: Callable[[], Any], method: str) -> Any:
        try:
            with self._of:
                return function()
        except ModelError:
            raise
        except BaseException as error:
            failed = self._failure(error, "", method)
        raise failed

    def _complete(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        if asyncio._get_running_loop() is not None:
            coroutine.close()
            raise ModelError(
                "INTERNAL",
                f"{self._before}`execute` returned a coroutine without being declared 'async def' "
                f"({self._place('execute', self._own)})",
            )
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(coroutine)

    def _failure(self, error: BaseException, before: str, method: str) -> ModelError:
        """Describe a failure in, or of, a method of the model; adds the method's place if no line of the model raised.

        A failure of `execute` is for clients, all others are for operators.
        """
        own = self._own if method == "execute" else None
        failed = failure.of_exception(error, before, own)
        runs = method != "execute" or self._execute is not _not_initialized
        if runs and failure.AT not in failed.message:
            failed.message = f"{failed.message.rstrip()}{failure.AT}  {self._place(method, own)}: {method}\n"
        return failed

    def _place(self, method: str, own: Optional[failure.OwnFiles] = None) -> str:
        file, line = self.path, ""
        with contextlib.suppress(Exception):  # a class of the model's own may raise wherever it is looked at
            code = inspect.unwrap(getattr(self._class, method)).__code__
            file, line = code.co_filename, f"({code.co_firstlineno})"
        return f"{file if own is None else own.name(file) or os.path.basename(file)}{line}"


def _signature(function: Any) -> Optional[inspect.Signature]:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # not every callable has one
        return None


def _takes_one(signature: inspect.Signature) -> bool:
    try:
        signature.bind([])
    except TypeError:
        return False
    return True


def _end(requests: List[InferenceRequest]) -> None:
    for request in requests:
        request.end()


def _not_initialized(requests: List[InferenceRequest]) -> Any:
    raise ModelError("INTERNAL", "the model is not initialized")


def _nothing() -> None:
    """Stand in for a missing method of a model."""
