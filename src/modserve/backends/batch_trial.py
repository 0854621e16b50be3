"""Trial of whether the first dimension of a model's tensors is a batch.

A file says that a dimension is variable, never that it is a batch. So rows are run together and apart, with generated
data, before the server merges the requests of a model without a configured `max_batch_size`. Only rows
with the same outputs either way may share an execution. The data must be such that outputs of different rows
differ, or equal outputs would prove nothing.

Results are kept by the digest of the model's files, or their identity if they are large, in memory and in the user's
cache.
"""

import hashlib
import itertools
import json
import logging
import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from modserve.core.configuration.model_config import DescribedTensor, InstanceKind, ModelDescription
from modserve.core.tensors import dtypes
from modserve.core.tensors.sample_data import likely, random_values
from modserve.core.tensors.tensor import Array

from .api import BackendModel, InstanceSpec
from .comparison import difference
from .registry import new_instance
from .runner import AsyncRunner, Inputs, Runner, UnmeasurableError, runner
from .user_cache import content_digest, user_cache

if TYPE_CHECKING:
    from numpy.random import Generator  # 2.6 MB, which most servers do without

_log = logging.getLogger(__name__)

EDITION = 1
"""Version of the trial: results of another edition are not used."""
_SAMPLES = 3
_SIZES = (8, 64, 224, 1, 3)
"""Sizes tried for the other variable dimensions, in this order: texts, pictures, and fixed numbers of these."""
_IDS, _FLAGS = 100, 2
"""Exclusive upper bounds of integers, tried in this order: every vocabulary has 100 tokens; indices may be 0 or 1."""
_ENOUGH_S, _MOST_S = 10.0, 60.0
"""Time limits in seconds: for beginning another sample, and for ending the trial without a result."""
_TOLERANCE, _REDUCED_TOLERANCE = 2e-3, 0.05
"""Largest difference of outputs, relative to their largest number: of fp32 on the CPU, and of all others."""
_TOO_LONG = f"a trial takes longer than {_MOST_S:g} s"
_NO_EVIDENCE = "its outputs are the same for all generated data, which proves nothing"
_FULL_PRECISIONS = ("fp32", "fp64", "")
_MOST_IN_MEMORY = 1000
_LARGEST_DIGESTED = 4 << 20
"""Largest file, in bytes, to digest by content: 10 ms. To digest weights would take as long as to load them."""

_results: dict[str, str] = {}


def batching_obstacle(
    model: BackendModel,
    spec: InstanceSpec,
    description: ModelDescription,
    files: Path,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """Return why the rows of a model must not share an execution; empty if a trial shows that they may.

    `spec` is of an instance to be made for the trial, with a configuration that batches; `files` are the model's.
    Engines that take requests one by one merge rows themselves, or not at all: of these nothing is tried.
    """
    key = _key(spec, description, files)
    if key and (known := _read(key)) is not None:
        return known
    try:
        instance = new_instance(model, spec)
    except Exception as error:
        return f"no instance can be made for a trial: {_line(error)}"
    try:
        run = runner(instance, tuple(tensor.name for tensor in description.outputs), ())
    except UnmeasurableError:
        instance.close()
        return ""
    except Exception as error:
        instance.close()
        return f"an instance cannot be run for a trial: {_line(error)}"
    try:
        obstacle, lasting = _Trial(run, description, _tolerance(model, spec), clock).obstacle()
    finally:
        run.close()
    if key and lasting:
        _write(key, obstacle)
    return obstacle


class _Trial:
    """Trial of a model: rows a and b run apart, then as (a, b), (b, a) and (a, a). Each has a first dimension of 1."""

    def __init__(
        self, run: Runner | AsyncRunner, description: ModelDescription, tolerance: float, clock: Callable[[], float]
    ) -> None:
        self._run = run
        self._inputs = [tensor for tensor in description.inputs if not tensor.optional]
        self._outputs = [tensor.name for tensor in description.outputs]
        self._tolerance = tolerance
        self._clock = clock
        self._begun_s = clock()

    @property
    def _elapsed_s(self) -> float:
        return self._clock() - self._begun_s

    def obstacle(self) -> tuple[str, bool]:
        """Return the obstacle, as `batching_obstacle`, and whether every trial would give it."""
        integers = any(tensor.datatype.json_kind == "int" for tensor in self._inputs)
        sizes = _SIZES if any(-1 in tensor.shape[1:] for tensor in self._inputs) else _SIZES[:1]
        obstacle = ""
        for size, most in itertools.product(sizes, (_IDS, _FLAGS) if integers else (_IDS,)):
            if self._elapsed_s > _MOST_S:
                return _TOO_LONG, False
            try:
                self._run.outputs(self._row(size, most, 0, np.random.default_rng(0)))
            except Exception as error:
                obstacle = obstacle or f"it fails with generated data: {_line(error)}"
                continue
            obstacle = self._samples_obstacle(size, most)
            if obstacle != _NO_EVIDENCE:
                break
        return obstacle, obstacle != _TOO_LONG

    def _samples_obstacle(self, size: int, most: int) -> str:
        """Return the obstacle for a size of variable dimensions and a bound of integers that the model accepts."""
        varies = False
        for number in range(_SAMPLES):
            if number and self._elapsed_s > _ENOUGH_S:
                break
            random = np.random.default_rng(number)
            rows = [self._row(size, most, number, random) for _ in range(2)]
            try:
                apart = [self._run.outputs(row) for row in rows]
            except Exception as error:
                if not number:
                    return f"it fails with generated data: {_line(error)}"
                continue  # numbers of other sizes, which this model does not take
            varies = varies or difference(apart[0], apart[1], self._outputs)[0] > self._tolerance
            for order in ((0, 1), (1, 0), (0, 0)) if not number else ((0, 1),):
                if self._elapsed_s > _MOST_S:
                    return _TOO_LONG
                if mixed := self._find_mixing(rows, apart, order):
                    return mixed
        return "" if varies else _NO_EVIDENCE

    def _row(self, size: int, most: int, sample: int, random: "Generator") -> dict[str, Array]:
        return {tensor.name: _values(tensor, _dims(tensor, size), most, sample, random) for tensor in self._inputs}

    def _find_mixing(self, rows: Sequence[Inputs], apart: Sequence[Mapping[str, Array]], order: tuple[int, int]) -> str:
        """Return evidence that rows executed together, in this order, give other outputs than apart; empty if none."""
        inputs = {name: np.concatenate([rows[each][name] for each in order]) for name in rows[0]}
        try:
            together = self._run.outputs(inputs)
        except Exception as error:
            return f"it takes one row, but fails with two: {_line(error)}"
        for name in self._outputs:
            singles = [np.asarray(apart[each][name]) for each in order]
            if any(not single.ndim or len(single) != 1 for single in singles):
                return f"output '{name}' has the shape {list(singles[0].shape)} for one row of the inputs"
            merged = np.asarray(together[name])
            if merged.shape[1:] != singles[0].shape[1:] or len(merged) != 2:
                shapes = f"{list(merged.shape)} for two rows of the inputs, {list(singles[0].shape)} for one"
                return f"output '{name}' has the shape {shapes}"
            if singles[0].shape != singles[1].shape:
                return f"output '{name}' has other dimensions for other values"
            distance, why = difference({name: merged}, {name: np.concatenate(singles)}, (name,))
            if why or distance > self._tolerance:
                return f"rows that run together give other values of output '{name}' than apart"
        return ""


def _dims(tensor: DescribedTensor, size: int) -> tuple[int, ...]:
    """Return the shape of one row. A symbol may be a sum, as in exports of language models."""
    symbols = tensor.symbols or ("",) * len(tensor.shape)
    dims = zip(tensor.shape[1:], symbols[1:], strict=True)
    return (1, *(each if each >= 0 else size * len(symbol.split(" + ")) for each, symbol in dims))


def _values(tensor: DescribedTensor, shape: tuple[int, ...], most: int, sample: int, random: "Generator") -> Array:
    """Generate data for one row, other for each sample: numbers around 0, from 0 to 1, and larger ones."""
    datatype, name = tensor.datatype, tensor.name.lower()
    if datatype.json_kind == "float":
        floats = random.random(shape) if sample == 1 else random.standard_normal(shape) * (10 if sample == 2 else 1)
        numbers: Array = floats.astype(datatype.numpy)
        return numbers
    if "mask" in name and datatype is not dtypes.BYTES and len(shape) > 1:  # of texts of different lengths
        length = int(random.integers(1, max(shape[-1], 1) + 1))
        return np.broadcast_to(np.arange(shape[-1]) < length, shape).astype(datatype.numpy)
    if datatype in (dtypes.BOOL, dtypes.BYTES) or (datatype is dtypes.UINT8 and most == _IDS):
        return random_values(datatype, shape, random)
    if most == _IDS and ("type" in name or "segment" in name or "len" in name):
        return likely(tensor.name, datatype, shape, random, shape[-1])
    integers: Array = random.integers(0, most, shape).astype(datatype.numpy)
    return integers


def _tolerance(model: BackendModel, spec: InstanceSpec) -> float:
    report: Callable[[], Mapping[str, object]] = getattr(model, "report", dict)
    exact = spec.kind is not InstanceKind.GPU and report().get("precision", "") in _FULL_PRECISIONS
    return _TOLERANCE if exact else _REDUCED_TOLERANCE


def _line(error: Exception) -> str:
    return re.sub(r"\s+", " ", str(error)).strip()[:300] or type(error).__name__


# Results


def _key(spec: InstanceSpec, description: ModelDescription, files: Path) -> str:
    """Return the digest of everything that a result depends on; empty if the files cannot be read."""
    config = spec.config
    try:
        content = content_digest(files, _LARGEST_DIGESTED)
    except OSError:
        return ""
    tensors = [repr(tensor) for tensor in (*description.inputs, *description.outputs)]
    facts = [EDITION, content, config.backend, spec.kind.value, tensors, sorted(config.parameters.items())]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:40]


def _read(key: str) -> str | None:
    if key in _results:
        return _results[key]
    directory = user_cache("batching")
    if directory is None:
        return None
    try:
        result: object = json.loads((directory / f"{key}.json").read_bytes())["obstacle"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # the model is tried again
    return result if isinstance(result, str) else None


def _write(key: str, obstacle: str) -> None:
    while len(_results) >= _MOST_IN_MEMORY:
        del _results[next(iter(_results))]
    _results[key] = obstacle
    directory = user_cache("batching")
    if directory is None:
        return
    with suppress(OSError):  # a server that may not write there tries its models at each start
        directory.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=directory, prefix=".trial-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"obstacle": obstacle}, file)
            os.replace(temporary, directory / f"{key}.json")
        except BaseException:
            os.unlink(temporary)
            raise
