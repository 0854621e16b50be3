"""A language model with its engine in worker processes of the Python backend.

The worker runs `program`, a decoupled model.py, so docs/python-models.md applies to its processes, limits and the
revival of lost ones. A process of its own: a step of an engine keeps the interpreter's lock, and its libraries are
large, may live in another environment, and may die.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from modserve.core.configuration.model_config import DescribedTensor, ModelConfig, ModelDescription
from modserve.core.errors import invalid
from modserve.core.files import tokenizer_files

from ..api import Executor, InstanceSpec, ModelSource
from ..catalogue import BY_BACKEND
from ..python import options as python_options
from ..python.backend import PythonBackend, PythonModel
from .tensors import OUTPUTS

PROGRAM = Path(__file__).parent / "program" / "model.py"
CONTEXT = "max_model_len"
CHAT_LENGTH = "default_max_tokens"
OF_CHATS = ("chat_template", "bos_token", "eos_token", CHAT_LENGTH)
"""Parameters that a model's description adds, for chats."""
Parameters = Mapping[str, str]


class LanguageModel:
    """Implementation of `backends.api.BackendModel`. `parameters` reads from the model's files the parameters that a
    configuration may omit: it may run the model's first process, and gets the model of the Python backend for that.
    """

    def __init__(
        self,
        source: ModelSource,
        inputs: tuple[DescribedTensor, ...],
        device: str,
        batch_limit: str,
        parameters: Callable[[PythonModel], Parameters],
    ) -> None:
        """Make the model. `batch_limit` is the parameter that limits the engine's batches. Raises INVALID_ARG."""
        config = source.config
        if config.max_batch_size:
            raise invalid(
                f"model '{config.name}': max_batch_size is {config.max_batch_size}, but the engine of backend "
                f"'{config.backend}' forms batches itself: leave max_batch_size out, and limit them by '{batch_limit}'"
            )
        if python_options.model_options(config).in_server:
            raise invalid(
                f"model '{config.name}': parameter '{python_options.EXECUTION_MODE}' is "
                f"'{config.parameters[python_options.EXECUTION_MODE]}', expected process: the engine would hold up "
                "everything else in the server's"
            )
        self._source = source
        self._inputs = inputs
        self._device = device
        self._parameters = parameters
        self._python = PythonModel(replace(source, path=PROGRAM, auto_complete=False))

    def describe(self) -> ModelDescription | None:
        return ModelDescription(
            self._inputs,
            OUTPUTS,
            batch_dimension=False,
            decoupled=True,
            dynamic_batching=False,
            adds_tensors=True,
            parameters=self._without_files(self._parameters(self._python)),
        )

    def _without_files(self, parameters: Parameters) -> dict[str, str]:
        """Leave out parameters with a file in the folder of the version or of the model, since chats read those, too.

        Such files correct the weights' own parameters.
        """
        try:
            files = tokenizer_files.read_version(self._source.model_directory / str(self._source.version))
        except tokenizer_files.BrokenFileError:  # which chats report
            files = tokenizer_files.NO_FILES
        names = {*files.tokens, *(() if files.template is None else ("chat_template",))}
        return {name: value for name, value in parameters.items() if name not in names}

    def instance(self, spec: InstanceSpec) -> Executor:
        if not spec.config.decoupled:
            raise invalid(
                f"model '{spec.config.name}': backend '{spec.config.backend}' answers with any number of responses; "
                "write model_transaction_policy { decoupled: true }"
            )
        return self._python.instance(spec)

    def report(self) -> Mapping[str, object]:
        engine = BY_BACKEND[self._source.config.backend]
        return {
            "engine": engine.library,
            "version": engine.version,
            "precision": "",
            "device": self._device,
            "threads": self._source.cpu_threads,
        }

    def close(self) -> None:
        self._python.close()


def code_in(config: ModelConfig, path: Path) -> str:
    """Implement `Backend.code_in`: a model with its own environment brings programs."""
    place = config.parameters.get(python_options.ENVIRONMENT_PATH, "")
    return PythonBackend().code_in(config, path) if place else ""


def lengths(context: int) -> dict[str, str]:
    """Return the parameters for a context of `context` tokens: a chat goes on to its end unless a request says
    otherwise."""
    return {CONTEXT: str(context), CHAT_LENGTH: str(context)}
