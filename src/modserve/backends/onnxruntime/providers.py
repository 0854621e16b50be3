"""Execution providers of ONNX Runtime: selection and options for an instance, and a check that they work.

The names and parameters of ``tensorrt``, ``cuda`` and ``openvino`` follow Triton's backend (its README, and
``ModelState::LoadModel`` in src/onnxruntime.cc).
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import onnxruntime as ort

from modserve.core.configuration.model_config import Accelerator, InstanceKind, ModelConfig
from modserve.core.errors import ModserveError, invalid

from ..api import Placement
from ..options import parameters_of
from . import builds

ProviderOptions: TypeAlias = dict[str, str]
Requested: TypeAlias = list[tuple[str, ProviderOptions]]

_SUFFIX = "ExecutionProvider"
CPU, CUDA, TENSORRT, OPENVINO = f"CPU{_SUFFIX}", f"CUDA{_SUFFIX}", f"Tensorrt{_SUFFIX}", f"OpenVINO{_SUFFIX}"
_XNNPACK = f"Xnnpack{_SUFFIX}"
_OF_OTHER_VERSIONS = tuple(f"{name}{_SUFFIX}" for name in ("ROCM", "ArmNN", "Tvm"))
_OTHER_NAMES = {"directml": f"Dml{_SUFFIX}", "onednn": f"Dnnl{_SUFFIX}", "trt": TENSORRT}
_BY_DEVICE = frozenset({CUDA, TENSORRT, *(f"{name}{_SUFFIX}" for name in ("ROCM", "MIGraphX", "NvTensorRTRTX", "Dml"))})
"""Providers with a GPU number as option."""
_DISTRIBUTIONS = {
    CUDA: "onnxruntime-gpu",
    TENSORRT: "onnxruntime-gpu",
    OPENVINO: "onnxruntime-openvino",
    f"Dml{_SUFFIX}": "onnxruntime-directml",
    f"QNN{_SUFFIX}": "onnxruntime-qnn",
    f"ROCM{_SUFFIX}": "onnxruntime-rocm",
    f"MIGraphX{_SUFFIX}": "onnxruntime-migraphx",
    f"CANN{_SUFFIX}": "onnxruntime-cann",
}
"""Provider → distribution to install in place of ``onnxruntime``."""

PROVIDERS = "execution_providers"
_CUDA_CHOICES: dict[str, tuple[str, ...]] = {
    "arena_extend_strategy": ("kNextPowerOfTwo", "kSameAsRequested"),
    "cudnn_conv_algo_search": ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
    "do_copy_in_default_stream": ("0", "1"),
}
"""ONNX Runtime's values of each option, indexed by Triton's numbers."""
CUDA_PARAMETERS = (*_CUDA_CHOICES, "gpu_mem_limit")
"""Model parameters from before Triton had accelerators."""
GRAPH_CAPTURE = frozenset({"enable_cuda_graph", "trt_cuda_graph_enable"})
"""Options that are dropped. A captured graph always reads its inputs from the first request's memory."""
_TENSORRT_PRECISIONS = {
    "FP32": {},
    "FP16": {"trt_fp16_enable": "1"},
    "BF16": {"trt_bf16_enable": "1"},
    "INT8": {"trt_int8_enable": "1"},
}
_TENSORRT_NAMES = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}


def choose_providers(config: ModelConfig, placement: Placement, threads: int = 1, sharing: int = 1) -> Requested:
    """Return the providers of a session in order of preference, without the CPU's, which is always last.

    `sharing` instances share the session, with `threads` threads each. Raises INVALID_ARG for unknown names, providers
    missing in this build, and invalid options.
    """
    on_gpu = placement.kind is InstanceKind.GPU
    if listed := config.parameters.get(PROVIDERS, ""):
        if config.gpu_accelerators or config.cpu_accelerators:
            raise invalid(
                f"model '{config.name}' has parameter '{PROVIDERS}' and optimization.execution_accelerators, which "
                "mean the same; remove one of them"
            )
        accelerators = [Accelerator(name.strip()) for name in listed.replace(";", ",").split(",")]
    else:
        accelerators = [*(config.gpu_accelerators if on_gpu else ())]
        if on_gpu and all(each.name != "cuda" for each in accelerators):
            accelerators.append(Accelerator("cuda"))  # for nodes that the others cannot run
        accelerators += config.cpu_accelerators
    providers: dict[str, ProviderOptions] = {}
    for accelerator in accelerators:
        provider = _provider(config, accelerator.name)
        options = _options(config, provider, accelerator.parameters)
        if provider in _BY_DEVICE and on_gpu:
            options["device_id"] = str(placement.device)
        if provider == OPENVINO:
            options = {"device_type": "CPU", **options}
            if options["device_type"] == "CPU":
                options = {"num_of_threads": str(threads * sharing), "num_streams": str(sharing), **options}
        if provider == _XNNPACK:
            options = {"intra_op_num_threads": str(threads), **options}
        providers.setdefault(provider, options)
    providers.pop(CPU, None)
    if on_gpu and not any(provider in _BY_DEVICE or provider == OPENVINO for provider in providers):
        raise invalid(
            f"model '{config.name}' has an instance on GPU {placement.device}, but parameter '{PROVIDERS}' "
            "has no provider for GPUs; add 'cuda' or 'tensorrt', or use kind: KIND_CPU"
        )
    return list(providers.items())


def _provider(config: ModelConfig, name: str) -> str:
    """Return the provider with a common name. Raises INVALID_ARG if this build lacks it."""
    available: Sequence[str] = ort.get_available_providers()
    known: dict[str, str] = {
        _short(each): each for each in (*ort.get_all_providers(), *_OF_OTHER_VERSIONS, *available)
    } | _OTHER_NAMES
    provider = known.get(_short(name))
    if provider is None:
        near = difflib.get_close_matches(_short(name), known, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        names = ", ".join(map(_short, available))
        raise invalid(
            f"model '{config.name}': unknown Execution Accelerator '{name}' is requested; this build of ONNX Runtime "
            f"has: {names}{hint}"
        )
    if provider not in available:
        distribution = _DISTRIBUTIONS.get(provider)
        hint = f"; {distribution} has it" if distribution else ""
        raise invalid(
            f"model '{config.name}' asks for '{name}', but this build of ONNX Runtime ({builds.line()}) has no "
            f"{provider}{hint}"
        )
    return provider


def _short(name: str) -> str:
    return name.strip().lower().removesuffix(_SUFFIX.lower())


def _options(config: ModelConfig, provider: str, parameters: Mapping[str, str]) -> ProviderOptions:
    if provider == TENSORRT:
        return _tensorrt_options(config, parameters)
    options = {key: value for key, value in parameters.items() if value and key not in GRAPH_CAPTURE}
    if provider == CUDA:
        options |= _cuda_options(config)
    return options


def _tensorrt_options(config: ModelConfig, parameters: Mapping[str, str]) -> ProviderOptions:
    options: ProviderOptions = {}
    for key, value in parameters.items():
        if key == "precision_mode":
            if value not in _TENSORRT_PRECISIONS:
                modes = ", ".join(_TENSORRT_PRECISIONS)
                what = f"unsupported precision mode '{value}' is requested, expected one of {modes}"
                raise invalid(f"model '{config.name}': {what}")
            options |= _TENSORRT_PRECISIONS[value]
        elif key in _TENSORRT_NAMES or key.startswith("trt_"):
            options[_TENSORRT_NAMES.get(key, key)] = value
        else:
            near = difflib.get_close_matches(key, ["precision_mode", *_TENSORRT_NAMES], n=1)
            hint = f"; did you mean '{near[0]}'?" if near else "; those of ONNX Runtime begin with 'trt_'"
            raise invalid(
                f"model '{config.name}': unknown parameter '{key}' is provided for TensorRT Execution Accelerator{hint}"
            )
    return {key: value for key, value in options.items() if value and key not in GRAPH_CAPTURE}


def _cuda_options(config: ModelConfig) -> ProviderOptions:
    """Return the options set by model parameters, Triton's older form. Raises INVALID_ARG."""
    options: ProviderOptions = {}
    parameters = parameters_of(config)
    for key, values in _CUDA_CHOICES.items():
        number = parameters.integer(key, -1)
        if number >= len(values):
            raise parameters.fault(key, f"a number from 0 to {len(values) - 1}")
        if number >= 0:
            options[key] = values[number]
    if limit := parameters.integer("gpu_mem_limit", 0):
        options["gpu_mem_limit"] = str(limit)
    return options


def check(session: ort.InferenceSession, providers: Requested, config: ModelConfig, placement: Placement) -> None:
    """Check a session's providers. Raises INVALID_ARG if one is missing, as ONNX Runtime continues without it."""
    present = session.get_providers()
    for name, options in providers:
        if name not in present:
            raise _refusal(config, placement, name, builds.why_unusable(name, options))


def _refusal(config: ModelConfig, placement: Placement, provider: str, why: str) -> ModserveError:
    reason = f" ({why})" if why else ""
    if provider == CUDA and placement.kind is InstanceKind.GPU:
        return invalid(
            f"model '{config.name}' has an instance on GPU {placement.device}, but ONNX Runtime runs it on the CPU: "
            f"its CUDA provider could not be used{reason}. Are the CUDA and cuDNN libraries that it was built for "
            "installed? Use kind: KIND_CPU to run on the CPU"
        )
    return invalid(
        f"model '{config.name}' asks for '{_short(provider)}', but ONNX Runtime could not use its {provider}{reason}, "
        "and would run the model without it. Are the libraries and the device that it needs there?"
    )


RECORD = "session.record_ep_graph_assignment_info"


def node_counts(session: ort.InferenceSession) -> dict[str, int]:
    """Return the number of graph nodes on each provider; empty if this session or version does not record it."""
    ask = getattr(session, "get_provider_graph_assignment_info", None)
    if ask is None:
        return {}
    counts: dict[str, int] = {}
    for part in ask():
        counts[part.ep_name] = counts.get(part.ep_name, 0) + len(part.get_nodes())
    return counts
