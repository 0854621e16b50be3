"""An instance of a PyTorch model, which runs batches."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import torch

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import ModserveError, internal, invalid
from modserve.core.tensors.tensor import Array

from ..tensors import input_datatypes, output_datatypes
from .arrays import input_converter, to_array
from .failures import of_execution, one_line
from .naming import Path, bind_results, flatten
from .options import PyTorchOptions
from .program import LoadedProgram
from .threads import InstanceThreads, SharedThreads

_log = logging.getLogger(__name__)

_ALONE: tuple[Path, ...] = ((),)


class PyTorchInstance:
    takes_early = True

    def __init__(
        self, loaded: LoadedProgram, config: ModelConfig, options: PyTorchOptions, threads: SharedThreads
    ) -> None:
        self._label = f"model '{config.name}'"
        self._run = loaded.run
        self._flat = loaded.flat
        self._paths = tuple(loaded.paths or ())
        self._holds_outputs = loaded.holds_outputs
        self._threads = InstanceThreads(threads)
        self._datatypes = output_datatypes(config)
        self._bindings: dict[tuple[Path, ...], dict[str, int]] = {}
        """Leaf of each output, by structure of the results."""
        if loaded.paths is not None:
            self._binding(self._paths)
        device = loaded.device if loaded.device is not None and loaded.device.type != "cpu" else None
        self.prefers_first = device is None and threads.all > threads.own
        cast = getattr(torch, options.precision) if options.precision else None
        self._casts = bool(options.precision or options.autocast)
        self._inputs = {
            name: input_converter(
                name, datatype, loaded.kinds.get(name, ""), copies=loaded.writes_inputs, cast=cast, device=device
            )
            for name, datatype in input_datatypes(config).items()
        }
        self._stream = _stream(device)
        self._context = _contexts(options, device, self._stream)
        self._cleans = options.cache_cleaning and device is not None

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
        try:
            with self._threads, self._context():
                values = {name: self._inputs[name](array) for name, array in inputs.items()}
                return self._arrays(self._run(values), outputs)
        except ModserveError:
            raise
        except Exception as error:
            _log.debug("%s failed", self._label, exc_info=True)
            raise of_execution(error) from error
        finally:
            if self._cleans:
                torch.cuda.empty_cache()

    def close(self) -> None:
        self._threads.close()
        if self._stream is not None:
            # The weights are not this stream's own: their memory may have another use as soon as they are gone, which
            # kernels of a failed execution may not have finished with.
            with suppress(RuntimeError):  # of a GPU that has failed
                self._stream.synchronize()
        del self._run

    def _arrays(self, result: Any, outputs: tuple[str, ...]) -> dict[str, Array]:
        paths, leaves = self._leaves(result)
        places = self._bindings.get(paths) or self._binding(paths)
        arrays = {}
        for name in outputs:
            leaf = leaves[places[name]]
            if leaf is None:
                raise internal(f"{self._label} returned nothing for output '{name}'")
            datatype = self._datatypes[name]
            try:
                arrays[name] = to_array(leaf, datatype, copies=self._holds_outputs, casts=self._casts)
            except (TypeError, ValueError, RuntimeError) as error:
                raise internal(f"{self._label}: output '{name}' is not an array: {one_line(str(error))}") from error
        return arrays

    def _leaves(self, result: Any) -> tuple[tuple[Path, ...], Sequence[Any]]:
        if self._flat:
            return self._paths, result
        if isinstance(result, torch.Tensor):
            return _ALONE, [result]
        pairs = list(flatten(result))
        return tuple([path for path, _ in pairs]), [leaf for _, leaf in pairs]

    def _binding(self, paths: tuple[Path, ...]) -> dict[str, int]:
        try:
            places = bind_results(self._label, list(self._datatypes), paths)
        except ModserveError as error:
            raise invalid(f"{error.message}; the outputs of the configuration are not results of the model") from None
        self._bindings[paths] = places
        return places


def _stream(device: Any) -> Any:
    """Return a CUDA stream for an instance; None on other devices. Its work follows the calling thread's."""
    if device is None or device.type != "cuda":
        return None
    stream = torch.cuda.Stream(device)
    # Weights are converted, and state is copied, on the stream of the thread that loads the model.
    stream.wait_stream(torch.cuda.current_stream(device))
    return stream


def _contexts(options: PyTorchOptions, device: Any, stream: Any) -> Callable[[], Any]:
    """Return a function that makes the context of an execution."""
    guard = partial(torch.inference_mode, True) if options.inference_mode else torch.no_grad
    others: list[Callable[[], Any]] = []
    if options.autocast:
        kind = "cpu" if device is None else device.type
        others.append(partial(torch.autocast, kind, dtype=getattr(torch, options.autocast)))
    if not options.optimized_execution:
        others.append(partial(torch.jit.optimized_execution, False))
    if stream is not None:
        others += [partial(torch.cuda.device, device), partial(torch.cuda.stream, stream)]
    if not others:
        return guard

    def all_of_them() -> Any:
        with ExitStack() as stack:
            for context in (guard, *others):
                stack.enter_context(context())
            return stack.pop_all()

    return all_of_them
