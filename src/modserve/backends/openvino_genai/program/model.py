"""The model.py of language models on OpenVINO GenAI: reads requests, and hands them to the engine's thread.

Inputs and outputs are those of Triton's backend for vLLM. The worker's interpreter needs openvino-genai, and nothing of
modserve but the module of Triton's Python API.
"""

import json
import os

import triton_python_backend_utils as pb_utils

from . import sampling
from .engine import GenerationEngine, PromptError
from .figures import Figures, clock
from .generation import Generation, Wishes
from .grammars import GrammarError, shortened

_SIZES = ("cache_size", "num_kv_blocks", "max_num_batched_tokens", "max_num_seqs")
_FLAGS = ("enable_prefix_caching", "dynamic_split_fuse", "use_cache_eviction", "use_sparse_attention")
_TRUE = ("true", "yes", "on")


class TritonPythonModel:
    def initialize(self, args):
        import openvino_genai

        config = json.loads(args["model_config"])
        parameters = {key: each["string_value"].strip() for key, each in config.get("parameters", {}).items()}
        directory = os.path.join(args["model_repository"], args["model_version"])
        path = os.path.join(directory, config["default_model_filename"])
        scheduler = scheduler_config(openvino_genai, parameters)
        try:
            pipeline = openvino_genai.ContinuousBatchingPipeline(
                path if path.endswith(".gguf") else directory,
                scheduler,
                parameters.get("device", "").upper() or "CPU",
                properties(openvino_genai, parameters, directory),
            )
        except (RuntimeError, TypeError) as error:
            raise pb_utils.TritonModelException(
                f"OpenVINO GenAI cannot load '{path}': {shortened(error)}", code=pb_utils.TritonError.INVALID_ARG
            ) from None
        labels = {"model": args["model_name"], "version": args["model_version"]}
        self.engine = GenerationEngine(
            openvino_genai,
            pipeline,
            scheduler.max_num_seqs,
            int(parameters.get("max_model_len") or 0),
            Figures(pb_utils, labels, args["model_instance_name"]),
            respond,
            fail,
            pb_utils.Logger.log_error,
        )

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            try:
                self.begin(request, sender)
            except (sampling.SamplingError, GrammarError, PromptError) as error:
                refuse(sender, str(error))
            except RuntimeError as error:
                refuse(sender, f"the engine does not take the request: {shortened(error)}")
        self.engine.wait_for_room()

    def begin(self, request, sender):
        at = clock()
        wishes = wishes_of(request)
        tensor = pb_utils.get_input_tensor_by_name(request, "sampling_parameters")
        if tensor is not None:
            chosen = sampling.read(sampling.read_json(as_bytes(tensor)))
        else:
            chosen = sampling.read(json.loads(request.parameters() or "{}"), strict=False)
        text = text_of(request)
        prompt = self.engine.tokens_of(text)
        self.engine.check(chosen)
        if not request.is_cancelled():  # the first question is answered by the server, later ones cost little
            self.engine.add(Generation(request, sender, text, prompt, chosen, wishes, at), prompt, chosen)
        else:
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def finalize(self):
        self.engine.close()


def scheduler_config(genai, parameters):
    config = genai.SchedulerConfig()
    config.enable_prefix_caching = True
    for name in _SIZES:
        if parameters.get(name):
            setattr(config, name, int(parameters[name]))
    for name in _FLAGS:
        if parameters.get(name):
            text = parameters[name].lower()
            setattr(config, name, text in _TRUE or (text.isdecimal() and int(text) != 0))
    return config


def properties(genai, parameters, directory):
    """What the engine gets beside the scheduler's limits: OpenVINO's properties, and adapters."""
    result = {
        key: value for key, value in parameters.items() if key == key.upper() and not key.startswith("EXECUTION_")
    }
    result = {key: int(value) if value.isdecimal() else value for key, value in result.items()}
    share = os.environ.get("OMP_NUM_THREADS", "")  # of the cores, where a model has several instances
    if share.isdecimal():
        result.setdefault("INFERENCE_NUM_THREADS", int(share))
    names = [each.strip() for each in parameters.get("adapters", "").split(",") if each.strip()]
    if names:
        # Requests cannot choose among adapters where the engine batches them: these are part of the model.
        adapters = genai.AdapterConfig(mode=genai.AdapterConfig.Mode.MODE_STATIC)
        for each in names:
            name, _, weight = each.rpartition(":") if ":" in each else (each, "", "")
            adapters.add(genai.Adapter(os.path.join(directory, name)), float(weight or 1))
        result["adapters"] = adapters
    return result


def text_of(request):
    try:
        return as_bytes(pb_utils.get_input_tensor_by_name(request, "text_input")).decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(f"text_input is not UTF-8: byte {error.start} is invalid") from None


def wishes_of(request):
    stream = flag(request, "stream")
    exclude = pb_utils.get_input_tensor_by_name(request, "exclude_input_in_output")
    prepend = not stream if exclude is None else not exclude.as_numpy().flat[0]
    if prepend and stream:
        raise PromptError("exclude_input_in_output is false, but stream is true: a stream never has the input")
    rest = {name: flag(request, f"return_{name}") for name in Wishes._fields[2:]}
    return Wishes(stream, prepend, **rest)


def flag(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return tensor is not None and bool(tensor.as_numpy().flat[0])


def as_bytes(tensor):
    value = tensor.as_numpy().flat[0]
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")


def respond(generation, arrays, final):
    tensors = [pb_utils.Tensor(name, array) for name, array in arrays.items()]
    flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
    generation.sender.send(pb_utils.InferenceResponse(tensors), flags)


def fail(generation, code, message):
    error = pb_utils.TritonError(message, getattr(pb_utils.TritonError, code))
    generation.sender.send(pb_utils.InferenceResponse(error=error), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def refuse(sender, message):
    error = pb_utils.TritonError(message, pb_utils.TritonError.INVALID_ARG)
    sender.send(pb_utils.InferenceResponse(error=error), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
