"""The ``fil`` backend: forests as Triton's forest backend (FIL) serves them, on the CPU.

Treelite reads the files, in a process of its own (`forest`), and ONNX Runtime computes the forests, as graphs of one
node (`graph`), because it is several times as fast as every other predictor (``benchmarks/trees.py``). What ONNX has no
operator for runs on Treelite. All instances of a model share one predictor.
"""

import logging
from collections.abc import Mapping, Sequence

import numpy as np

from modserve.core.configuration.model_config import DescribedTensor, ModelConfig, ModelDescription, TensorSpec
from modserve.core.errors import invalid
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Array

from ..api import INSTANCES, InstanceSpec, ModelSource
from ..code import NoCode
from ..options import default_max_batch_size
from . import contributions, formats
from .contributions import Contributions
from .forest import Forest, read
from .options import BACKEND_OPTIONS, ForestOptions, model_options, warnings
from .predictors import OnnxPredictor, Predictor, TreelitePredictor, agrees
from .results import Result, result

_log = logging.getLogger(__name__)

_INPUT, _OUTPUT = "input__0", "output__0"
_DEFAULT_MAX_BATCH_SIZE = 32768
"""Default of Triton's example. A row takes microseconds."""


class FilBackend(NoCode):
    default_model_filename = "xgboost.model"
    default_cpu_instances = 2
    any_thread = True
    in_place = INSTANCES
    known_options = BACKEND_OPTIONS

    def gpu_count(self) -> int:
        return 0

    def open(self, source: ModelSource) -> "FilModel":
        for warning in warnings(source.config):
            _log.warning("%s", warning)
        return FilModel(source)


class FilModel:
    """An open forest. `path` and `kind` are its file and the file's format, by Triton's name."""

    def __init__(self, source: ModelSource) -> None:
        self._source = source
        config = source.config
        self._options = options = model_options(config)
        self.path = formats.locate(source.path, options.model_type)
        if not self.path.is_file():
            expected = ", ".join(f"'{name}' ({kind})" for kind, name in formats.FILENAMES.items())
            raise invalid(
                f"unable to find model file '{self.path}' for model '{config.name}'; expected {expected}, "
                f"or the name in default_model_filename"
            )
        self.kind = formats.kind_of(self.path, options.model_type)
        if not self.kind:
            raise invalid(
                f"model '{config.name}': the kind of '{self.path}' is unknown; set the parameter 'model_type' to one "
                f"of: {', '.join(formats.FILENAMES)}"
            )
        self._threads = options.threads or source.cpu_threads
        self._double = any(spec.datatype is dtypes.FP64 for spec in config.inputs)
        self.forest, self._predictor = self._prepare()
        shap = any(spec.name == contributions.OUTPUT for spec in config.outputs)
        self._contributions = contributions.contributions(self.path, self.kind, self._threads) if shap else None
        self.result = _result(self.forest, options, config)

    def _prepare(self) -> tuple[Forest, Predictor]:
        """Return the forest and its predictor."""
        name, options = self._source.config.name, self._options
        wishes_treelite = self._double or options.predictor == "treelite"
        forest = self._read(wishes_treelite)
        if forest.obstacle and options.predictor == "onnxruntime":
            raise invalid(f"model '{name}': parameter 'predictor' is 'onnxruntime', but {forest.obstacle}")
        if forest.checkpoint is None:
            # One thread runs the instance itself; all instances share the others.
            predictor = OnnxPredictor(forest, self._source.cpu_instances * (self._threads - 1) + 1)
            if agrees(predictor, forest):
                return forest, predictor
            _log.warning("model '%s': ONNX Runtime and Treelite give different results for '%s'", name, self.path)
            forest = self._read(True)
        if not wishes_treelite and forest.obstacle:
            _log.info("model '%s' runs on Treelite: %s", name, forest.obstacle)
        return forest, TreelitePredictor(forest, self._threads)

    def _read(self, for_treelite: bool) -> Forest:
        unknown_fields = self._options.unknown_fields
        return read(self.path, self.kind, unknown_fields=unknown_fields, for_treelite=for_treelite)

    def describe(self) -> ModelDescription:
        config, forest = self._source.config, self.forest
        input_name = config.inputs[0].name if len(config.inputs) == 1 else _INPUT
        input_type = _datatype(config.inputs, input_name)
        names = [spec.name for spec in config.outputs if spec.name != contributions.OUTPUT]
        columns = {names[0] if len(names) == 1 else _OUTPUT: self.result[0]}
        if self._contributions is not None:
            columns[contributions.OUTPUT] = forest.columns * (forest.features + 1)
        outputs = [
            DescribedTensor(name, _datatype(config.outputs, name), (-1, _size(config.outputs, name, count)))
            for name, count in columns.items()
        ]
        default = default_max_batch_size(self._source.options, _DEFAULT_MAX_BATCH_SIZE)
        features = DescribedTensor(input_name, input_type, (-1, _size(config.inputs, input_name, forest.features)))
        return ModelDescription((features,), tuple(outputs), default)

    def instance(self, spec: InstanceSpec) -> "FilInstance":
        return FilInstance(self.forest, self._predictor, self.result, self._contributions, spec.config)

    def report(self) -> Mapping[str, object]:
        predictor, forest = self._predictor, self.forest
        return {
            "engine": predictor.engine,
            "version": predictor.version,
            "precision": predictor.precision,
            "device": "cpu",
            "threads": self._threads,
            "file": self.path.name,
            "model_type": self.kind,
            "task": forest.task,
            "trees": forest.trees,
            "features": forest.features,
        }

    def close(self) -> None:
        del self._predictor
        self._contributions = None


def _result(forest: Forest, options: ForestOptions, config: ModelConfig) -> Result:
    specs = [spec for spec in config.outputs if spec.name != contributions.OUTPUT]
    columns = specs[0].dims[-1] if len(specs) == 1 and specs[0].dims and specs[0].dims[-1] > 0 else None
    return result(forest.task, forest.targets, forest.classes, options, columns)


def _size(specs: Sequence[TensorSpec], name: str, size: int) -> int:
    """Return the last dimension of a tensor, or -1 if configured so."""
    return -1 if any(spec.name == name and spec.dims[-1:] == (-1,) for spec in specs) else size


def _datatype(specs: Sequence[TensorSpec], name: str) -> Datatype:
    """Return the configured datatype if it is numeric (any is converted), else FP32."""
    datatypes = [spec.datatype for spec in specs if spec.name == name and spec.datatype is not dtypes.BYTES]
    return datatypes[0] if datatypes else dtypes.FP32


class FilInstance:
    data_dependent = False
    takes_early = True

    def __init__(
        self,
        forest: Forest,
        predictor: Predictor,
        result: Result,
        contributed: Contributions | None,
        config: ModelConfig,
    ) -> None:
        self._features = forest.features
        self._predictor = predictor
        self._columns, self._make = result
        self._contributed = contributed
        self._shap_columns = forest.columns * (forest.features + 1)
        self._type = np.float64 if predictor.precision == "fp64" else np.float32
        if len(config.inputs) != 1:
            names = ", ".join(spec.name for spec in config.inputs)
            raise invalid(f"model '{config.name}' has the inputs {names}; a forest takes one input with all features")
        self._input = config.inputs[0].name
        results = [spec for spec in config.outputs if spec.name != contributions.OUTPUT]
        if len(results) != 1:
            names = ", ".join(spec.name for spec in config.outputs)
            raise invalid(
                f"model '{config.name}' has the outputs {names}; it gives one output, and '{contributions.OUTPUT}'"
            )
        self._output = results[0].name
        self._types = {spec.name: spec.datatype.numpy for spec in config.outputs}
        if any(spec.datatype is dtypes.BYTES for spec in (*config.inputs, *config.outputs)):
            raise invalid(f"model '{config.name}' has a tensor of TYPE_STRING; a forest takes and gives numbers")

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
        features = inputs[self._input]
        shape = features.shape
        if not shape or shape[-1] != self._features:
            raise invalid(
                f"input '{self._input}' has the shape {list(shape)}, but this forest takes {self._features} features, "
                "in the last dimension"
            )
        rows = np.ascontiguousarray(features, self._type).reshape(-1, self._features)
        values = {}
        for name in outputs:
            if name == contributions.OUTPUT and self._contributed is not None:
                values[name] = self._shape_output(name, self._contributed(rows), shape, self._shap_columns)
            else:
                values[name] = self._shape_output(name, self._make(self._predictor(rows)), shape, self._columns)
        return values

    def _shape_output(self, name: str, values: Array, shape: tuple[int, ...], columns: int) -> Array:
        return values.astype(self._types.get(name, np.float32), copy=False).reshape(*shape[:-1], columns)

    def close(self) -> None:
        del self._predictor, self._contributed
