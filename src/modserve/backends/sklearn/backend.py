"""The ``sklearn`` backend: estimators and pipelines of scikit-learn, from skops files or, if allowed, from pickles.

An output is a method of the estimator: ``predict``, ``predict_proba``, … Only requested outputs are computed. Forests
run on ONNX Runtime (`acceleration`), in microseconds instead of milliseconds. Other estimators run themselves and are
shared by all instances.
"""

import logging
import warnings as python_warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sklearn
import threadpoolctl

from modserve.core.configuration.model_config import DescribedTensor, ModelConfig, ModelDescription, TensorSpec
from modserve.core.errors import ModserveError, invalid
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Array

from ..api import InstanceSpec, ModelSource, refused
from ..options import default_max_batch_size
from ..tensors import object_array, texts_of
from . import options
from .acceleration import AcceleratedForest, accelerate, computable
from .files import PICKLES, check, load
from .options import METHODS
from .shapes import Features, as_tensor, features_of, frame, inputs_of, output_of, sample

_log = logging.getLogger(__name__)

# Estimators trained on named columns warn at each row without names, and rows have none here.
python_warnings.filterwarnings("ignore", message="X does not have valid feature names", category=UserWarning)

_DEFAULT_MAX_BATCH_SIZE = 1024
_DEFAULT_METHODS = ("predict", "predict_proba"), ("transform",), ("decision_function",), ("score_samples",)
"""Default outputs: the available methods of the first tuple of which the estimator has any."""


class SklearnBackend:
    default_model_filename = "model.skops"
    default_cpu_instances = 1
    any_thread = False
    known_options = options.BACKEND_OPTIONS

    def gpu_count(self) -> int:
        return 0

    def code_in(self, config: ModelConfig, path: Path) -> str:
        return f"'{path.name}' is a pickle, and loading a pickle runs its code" if path.suffix in PICKLES else ""

    def refusal(self, config: ModelConfig, path: Path, backend_options: Mapping[str, str]) -> ModserveError | None:
        """Return the error with which `open` would refuse a file, without loading it; None if not detected."""
        try:
            check(path, config.name, options.permissions(backend_options))
        except ModserveError as error:
            return error
        return None

    def open(self, source: ModelSource) -> "SklearnModel":
        for warning in options.warnings(source.config):
            _log.warning("%s", warning)
        return SklearnModel(source)


class SklearnModel:
    """An open estimator. `any_thread`: none of its libraries has thread counts per calling thread."""

    def __init__(self, source: ModelSource) -> None:
        self._source = source
        config = source.config
        if not source.path.is_file():
            raise invalid(
                f"unable to find model file '{source.path}' for model '{config.name}'; expected model.skops, "
                "model.joblib or model.pkl, or the name in default_model_filename"
            )
        self._method = options.method(config)
        self._estimator = load(source.path, config.name, options.permissions(source.options))
        if not any(hasattr(self._estimator, method) for method in METHODS):
            raise invalid(
                f"model '{config.name}': '{source.path}' holds an object of the type {type(self._estimator).__name__}, "
                f"which has none of the methods {', '.join(METHODS)}"
            )
        self._features = features_of(self._estimator)
        _limit_jobs(self._estimator, source.cpu_threads)
        fits = all(computable(self._estimator, spec.datatype.numpy) for spec in config.inputs)
        wished = fits and options.accelerate(config)
        self._accelerated = accelerate(self._estimator, source.cpu_threads) if wished else None
        self.any_thread = self._accelerated is not None

    def describe(self) -> ModelDescription | None:
        """Describe the model by a trial; None if its features are unknown or the trial with zeros fails."""
        config, features = self._source.config, self._features
        rows = sample(features, 2)
        if rows is None:
            _log.info("model '%s' does not say how many features it takes: its configuration must", config.name)
            return None
        outputs = []
        for name, method in self._outputs(config).items():
            try:
                output = output_of(name, as_tensor(method, getattr(self._estimator, method)(rows)))
                outputs.append(_apply_type(output, config.outputs_by_name.get(name)))
            except ModserveError:
                raise
            except Exception as error:  # raised by the estimator
                text = "model '%s': '%s' fails with an input of zeros: %s; the configuration is not completed"
                _log.warning(text, config.name, method, error)
                return None
        default = default_max_batch_size(self._source.options, _DEFAULT_MAX_BATCH_SIZE)
        return ModelDescription(_as_configured(inputs_of(features), config), tuple(outputs), default)

    def _outputs(self, config: ModelConfig) -> dict[str, str]:
        """Return the method of each output."""
        estimator, names = self._estimator, config.output_names
        if names:
            methods = {name: self._method if self._method and name not in METHODS else name for name in names}
            if len(names) == 1 and self._method:
                methods = {names[0]: self._method}
        elif self._method:
            methods = {self._method: self._method}
        else:
            lines = ([name for name in line if hasattr(estimator, name)] for line in _DEFAULT_METHODS)
            methods = {name: name for name in next(filter(None, lines), METHODS[:1])}
        for name, method in methods.items():
            if method not in METHODS or not hasattr(estimator, method):
                present = ", ".join(each for each in METHODS if hasattr(estimator, each)) or "none"
                raise invalid(
                    f"model '{config.name}', output '{name}': {type(estimator).__name__} has no method '{method}'; "
                    f"name an output after its method, or set the parameter 'method'. It has: {present}"
                )
        return methods

    def instance(self, spec: InstanceSpec) -> "SklearnInstance":
        methods = self._outputs(spec.config)
        return SklearnInstance(
            self._estimator, self._features, methods, spec.config, self._source.cpu_threads, self._accelerated
        )

    def report(self) -> Mapping[str, object]:
        return {
            "engine": "scikit-learn" if self._accelerated is None else "ONNX Runtime",
            "version": sklearn.__version__ if self._accelerated is None else self._accelerated.version,
            "precision": "fp64" if self._accelerated is None else "fp32",
            "device": "cpu",
            "threads": self._source.cpu_threads,
            "file": self._source.path.name,
            "estimator": type(self._estimator).__name__,
            "accelerated": self._accelerated is not None,
        }

    def close(self) -> None:
        del self._estimator
        self._accelerated = None


def _as_configured(described: tuple[DescribedTensor, ...], config: ModelConfig) -> tuple[DescribedTensor, ...]:
    """Accept any name and numeric type for a single input, and -1 for the number of features."""
    if len(described) != 1 or len(config.inputs) != 1:
        return described
    spec, (tensor,) = config.inputs[0], described
    shape = (-1, -1) if spec.dims == (-1,) else tensor.shape
    return (_apply_type(DescribedTensor(spec.name, tensor.datatype, shape), spec),)


def _apply_type(tensor: DescribedTensor, spec: TensorSpec | None) -> DescribedTensor:
    """Return the tensor with the configured numeric type."""
    if spec is None or (spec.datatype is dtypes.BYTES) != (tensor.datatype is dtypes.BYTES):
        return tensor
    return DescribedTensor(tensor.name, spec.datatype, tensor.shape)


def _limit_jobs(estimator: Any, threads: int) -> None:
    """Limit the parallel jobs of an estimator to the instance's threads."""
    try:
        jobs = {key: value for key, value in estimator.get_params().items() if key.rpartition("__")[2] == "n_jobs"}
    except Exception as error:  # third-party estimators may lack it or fail
        _log.debug("cannot read the parameters of %s: %s", type(estimator).__name__, error)
        return
    limited = {key: threads for key, value in jobs.items() if value is not None and not 0 < value <= threads}
    if limited:
        estimator.set_params(**limited)


class SklearnInstance:
    """An instance. `data_dependent` unless ONNX Runtime computes all outputs for all inputs."""

    def __init__(
        self,
        estimator: Any,
        features: Features,
        methods: Mapping[str, str],
        config: ModelConfig,
        threads: int,
        fast: AcceleratedForest | None,
    ) -> None:
        self._estimator = estimator
        self._features = features
        self._methods = methods
        self._inputs = config.inputs
        self._types = {spec.name: spec.datatype.numpy for spec in config.outputs if spec.datatype is not dtypes.BYTES}
        self._threads = threads
        self._limited = False
        self._fast = fast
        self._controller = None if fast is None else threadpoolctl.ThreadpoolController()
        # Non-finite numbers go to the estimator, which takes far longer. Only integers are always finite.
        whole = fast is not None and all(spec.datatype.numpy.kind in "iub" for spec in config.inputs)
        self.data_dependent = not (whole and fast and all(map(fast.computes, methods.values())))
        self._frame = features.columns is not None or len(config.inputs) > 1

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
        if not self._limited and self._fast is None:
            # OpenMP's limit applies to the calling thread only, so no other thread is affected.
            threadpoolctl.threadpool_limits(self._threads, user_api="openmp")
            self._limited = True
        rows = self._rows(inputs)
        values = {}
        for name in outputs:
            method = self._methods[name]
            try:
                fast = self._fast.compute(method, rows) if self._fast is not None else None
                result = self._slow(method, rows) if fast is None else fast
            except (ValueError, TypeError, KeyError) as error:  # estimators reject unsuitable input with these
                raise refused("scikit-learn", " ".join(str(error).split())) from None
            values[name] = result.astype(self._types.get(name, result.dtype), copy=False)
        return values

    def _slow(self, method: str, rows: Any) -> Array:
        """Compute with the estimator. If several threads may call this, threads are limited for each call."""
        if self._controller is None:
            return as_tensor(method, getattr(self._estimator, method)(rows))
        with self._controller.limit(limits=self._threads, user_api="openmp"):
            return as_tensor(method, getattr(self._estimator, method)(rows))

    def _rows(self, inputs: Mapping[str, Array]) -> Any:
        if self._frame:
            return frame({spec.name: _column(spec, inputs[spec.name]) for spec in self._inputs if spec.name in inputs})
        (spec,) = self._inputs
        array = inputs[spec.name]
        if spec.datatype is dtypes.BYTES:
            texts = texts_of(spec.name, array)
            return texts if self._features.text else object_array(texts, array.shape)
        count = self._features.count
        if count and (array.ndim == 0 or array.shape[-1] != count):
            raise invalid(
                f"input '{spec.name}' has the shape {list(array.shape)}, but this model takes {count} features, in the "
                "last dimension"
            )
        return array.reshape(-1, array.shape[-1]) if array.ndim else array

    def close(self) -> None:
        del self._estimator
        self._fast = None


def _column(spec: TensorSpec, array: Array) -> Array:
    return object_array(texts_of(spec.name, array), (-1,)) if spec.datatype is dtypes.BYTES else array.reshape(-1)
