"""Start of vLLM with the arguments in ``model.json``."""

import asyncio
import base64
import binascii
import dataclasses
import io
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from ..contract import Replies, RequestError
from ..figures import Figures
from ..loading import EngineFiles, LoadingError
from .arguments import adapters, engine_arguments
from .engine import Adapters, Errors, VllmEngine
from .sampling import SamplingReader
from .statistics import EngineStatistics, TritonsMetrics, logger_kind

HEALTH, METRICS = "ENABLE_VLLM_HEALTH_CHECK", "REPORT_CUSTOM_METRICS"


def load(files: EngineFiles, figures: Figures, replies: Replies, api: Any) -> VllmEngine:
    """Load the engine. Raises LoadingError."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # vLLM would report the machine to its makers
    path = os.path.join(files.directory, files.filename)
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="vllm", daemon=True).start()
    arguments = _arguments(path, files, api)
    folders = adapters(files.directory) if arguments.enable_lora else {}
    starting = _start(arguments, _loggers(files, figures, api))
    try:
        llm = asyncio.run_coroutine_threadsafe(starting, loop).result()
    except Exception as error:
        raise LoadingError(f"vLLM cannot load '{path}': {_text(error)}") from error
    import msgspec
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    return VllmEngine(
        llm,
        loop,
        SamplingReader(
            SamplingParams, lambda fields, kind: msgspec.convert(fields, kind, strict=False), RequestOutputKind.DELTA
        ),
        Adapters(bool(arguments.enable_lora), folders, LoRARequest),
        _images,
        _errors(),
        figures,
        replies,
        api.Logger.log_error,
        checks_health=_is_true(files.parameters, HEALTH),
    )


def describe(path: str, api: Any) -> dict[str, str]:
    """Return the chat parameters of a model that may have to be fetched: by its tokenizer, and vLLM's own reading
    of its configuration. Raises LoadingError.
    """
    from transformers import AutoTokenizer

    arguments = _arguments(path, EngineFiles(os.path.dirname(path), os.path.basename(path), {}, "MODEL", -1), api)
    try:
        context = arguments.create_model_config().max_model_len
        tokenizer = AutoTokenizer.from_pretrained(
            arguments.tokenizer or arguments.model,
            revision=arguments.tokenizer_revision or arguments.revision,
            trust_remote_code=arguments.trust_remote_code,
        )
    except Exception as error:
        raise LoadingError(f"vLLM cannot load '{path}': {_text(error)}") from error
    values = {name: getattr(tokenizer, name, None) for name in ("chat_template", "bos_token", "eos_token")}
    texts = {name: value for name, value in values.items() if isinstance(value, str)}
    return {**texts, "default_max_tokens": str(context)}


def _arguments(path: str, files: EngineFiles, api: Any) -> Any:
    import vllm
    from vllm.engine.arg_utils import AsyncEngineArgs

    defaults = {field.name: field.default for field in dataclasses.fields(AsyncEngineArgs)}
    values = engine_arguments(path, defaults, vllm.__version__, api.Logger.log_warn)
    if files.kind == "GPU":
        sizes = [int(values.get(f"{name}_parallel_size") or 1) for name in ("tensor", "pipeline")]
        if sizes[0] * sizes[1] > 1:
            raise LoadingError(
                "KIND_GPU is currently for single-GPU models, please specify KIND_MODEL in the model's config.pbtxt "
                "for multi-GPU models"
            )
        if files.device >= 0:
            os.environ["CUDA_VISIBLE_DEVICES"] = str(files.device)
    try:
        return AsyncEngineArgs(**values)
    except (ValueError, TypeError) as error:
        raise LoadingError(f"'{path}': {_text(error)}") from None


async def _start(arguments: Any, loggers: Sequence[Any]) -> Any:
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    # As vLLM's own server: by this, some of its defaults differ.
    return AsyncLLM.from_engine_args(
        arguments, usage_context=UsageContext.OPENAI_API_SERVER, stat_loggers=None if not loggers else list(loggers)
    )


def _loggers(files: EngineFiles, figures: Figures, api: Any) -> Sequence[Any]:
    from vllm.v1.metrics.loggers import StatLoggerBase

    def triton(context: int) -> TritonsMetrics:
        return TritonsMetrics(api, figures.labels, context)

    return [
        logger_kind(StatLoggerBase, EngineStatistics(figures), triton if _is_true(files.parameters, METRICS) else None)
    ]


def _errors() -> Errors:
    from vllm.v1.engine.exceptions import EngineDeadError

    try:
        from vllm import exceptions
    except ImportError:
        exceptions = None
    client = [kind for name in ("VLLMClientError",) if (kind := getattr(exceptions, name, None)) is not None]
    full = [kind for name in ("GracefulHTTPError",) if (kind := getattr(exceptions, name, None)) is not None]
    return Errors((EngineDeadError,), (ValueError, TypeError, *client), tuple(full))


def _images(files: Sequence[bytes]) -> Sequence[Any]:
    from PIL import Image

    images = []
    for index, file in enumerate(files):
        try:
            images.append(Image.open(io.BytesIO(base64.b64decode(file, validate=True))).convert("RGB"))
        except (binascii.Error, OSError, ValueError) as error:
            raise RequestError(f"image[{index}] is not an image file in Base64: {error}") from None
    return images


def _is_true(parameters: Mapping[str, str], name: str) -> bool:
    return parameters.get(name, "").lower() == "true"


def _text(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
