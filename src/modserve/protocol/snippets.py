"""Example programs that send a request to a model: with curl, with modserve's client and with NVIDIA's client.

The request comes from `examples`. The programs call ``http://localhost:8000``. NVIDIA's client streams over gRPC only,
and calls ``localhost:8001``. Callers replace these addresses by the server's.
"""

import json
import math
import shlex
from collections.abc import Mapping
from urllib.parse import quote

from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.protocol import examples
from modserve.protocol.examples import JsonObject, Models

MOST_LISTED = 32
"""Maximum number of elements that a Python program lists. Larger tensors are computed by an expression."""
MOST_IN_JSON = 300
"""Maximum number of elements that a curl command lists. Otherwise it sends binary tensors of zeros."""

_EMPTY_STRING_SIZE = 4
"""Size in bytes of an empty string in a binary BYTES tensor: the length prefix."""

_COUNTING_ARRAYS: Mapping[str, str] = {
    "bool": "(np.arange({count}) % 2 == 0).reshape({shape})",
    "int": "(np.arange({count}) % 100).reshape({shape}).astype({dtype})",
    "float": "(np.arange({count}) % 100).reshape({shape}).astype({dtype})",
    "string": 'np.array([f"text {{index}}" for index in range({count})], object).reshape({shape})',
}
"""Expressions for a large first input, by `Datatype.json_kind`. The elements count up."""

_DTYPES: Mapping[str, str] = {"BYTES": "object", "BF16": "ml_dtypes.bfloat16"}
"""Expressions for the dtypes that are not attributes of numpy, by datatype."""

_IMPORT_QUEUE = "import queue\n\n"
_MAKE_INPUTS = """\
inputs = []
for name, (datatype, array) in values.items():
    tensor = {module}.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    inputs.append(tensor)
"""


def snippets(config: ModelConfig, models: Models) -> dict[str, str]:
    """Return the programs by the name of the client."""
    return {
        "curl": curl(config, models),
        "python": python(config, models),
        "tritonclient": tritonclient(config, models),
    }


def curl(config: ModelConfig, models: Models) -> str:
    """Return a shell command. Decoupled models need ``infer_stream``."""
    stream = examples.decoupled(config, models)
    path = f"/v2/models/{quote(config.name, safe='')}/{'infer_stream' if stream else 'infer'}"
    command = f"curl{' -N' if stream else ''} {shlex.quote(f'http://localhost:8000{path}')}"
    if examples.elements(config) <= MOST_IN_JSON:
        return f"{command} -d {shlex.quote(_body(examples.infer(config, models)))}"
    specs = examples.choose_inputs(config)
    sizes = [math.prod(examples.shape(config, spec)) * (spec.datatype.size or _EMPTY_STRING_SIZE) for spec in specs]
    tensors = [
        {**_describe_input(config, spec), "parameters": {"binary_data_size": size}}
        for spec, size in zip(specs, sizes, strict=True)
    ]
    text = _body({**_with_parameters(config, models), "inputs": tensors})
    return (
        f"(printf %s {shlex.quote(text)}; head -c {sum(sizes)} /dev/zero) |\n"
        f"  {command} --data-binary @- -H 'Inference-Header-Content-Length: {len(text.encode())}'"
    )


def python(config: ModelConfig, models: Models) -> str:
    """Return a Python program that uses modserve's client."""
    values = {spec.name: _client_value(config, spec) for spec in examples.choose_inputs(config)}
    inputs = "".join(f"        {json.dumps(name)}: {value},\n" for name, value in values.items())
    parameters = examples.parameters(config, models)
    closing = f"    }}, parameters={parameters!r}" if parameters else "    }"
    arguments = f"{json.dumps(config.name)}, {{\n{inputs}{closing}"
    if examples.decoupled(config, models):
        call = f"    for result in client.stream({arguments}):\n{_print_outputs(config, '        print(result[{}])')}"
    else:
        call = f"    result = client.infer({arguments})\n{_print_outputs(config, '    print(result[{}])')}"
    return f'{_imports(inputs)}import modserve\n\nwith modserve.connect("http://localhost:8000") as client:\n{call}'


def tritonclient(config: ModelConfig, models: Models) -> str:
    """Return a Python program that uses NVIDIA's client: over HTTP, or over gRPC for a decoupled model."""
    stream = examples.decoupled(config, models)
    kind, module = ("grpc", "grpcclient") if stream else ("http", "httpclient")
    values = "".join(
        f'    {json.dumps(spec.name)}: ("{spec.datatype.name}", {_array(config, spec)}),\n'
        for spec in examples.choose_inputs(config)
    )
    head = (
        f"# pip install 'tritonclient[{kind}]'\n"
        f"{_IMPORT_QUEUE if stream else ''}{_imports(values)}import tritonclient.{kind} as {module}\n\n"
        f"values = {{\n{values}}}\n{_MAKE_INPUTS.format(module=module)}\n"
    )
    parameters = "".join(f", {name}={value!r}" for name, value in examples.parameters(config, models).items())
    name = json.dumps(config.name)
    if not stream:
        return (
            f'{head}with httpclient.InferenceServerClient("localhost:8000") as client:\n'
            f"    result = client.infer({name}, inputs{parameters})\n"
            f"{_print_outputs(config, '    print(result.as_numpy({}))')}"
        )
    return (
        f"{head}responses = queue.Queue()\n"
        f'with grpcclient.InferenceServerClient("localhost:8001") as client:  # its gRPC port\n'
        "    client.start_stream(lambda result, error: responses.put((result, error)))\n"
        f"    client.async_stream_infer({name}, inputs, enable_empty_final_response=True{parameters})\n"
        "    final = False\n"
        "    while not final:\n"
        "        result, error = responses.get()\n"
        "        if error is not None:\n"
        "            raise error\n"
        "        if result.get_response().outputs:\n"
        f"{_print_outputs(config, '            print(result.as_numpy({}))')}"
        '        final = result.get_response().parameters["triton_final_response"].bool_param\n'
    )


def _imports(code: str) -> str:
    lines = (("ml_dtypes.", "import ml_dtypes\n"), ("np.", "import numpy as np\n"))
    return "".join(line for name, line in lines if name in code)


def _print_outputs(config: ModelConfig, line: str) -> str:
    return "".join(f"{line.format(json.dumps(spec.name))}\n" for spec in config.outputs)


def _body(body: JsonObject) -> str:
    """Encode a request body as JSON, with each tensor on a line of its own."""
    tensors = body["inputs"]
    assert isinstance(tensors, list), "the body of an inference: this is a bug"
    rest = "".join(f"{json.dumps(key)}: {json.dumps(value)}, " for key, value in body.items() if key != "inputs")
    lines = ",\n  ".join(map(json.dumps, tensors))
    return f'{{{rest}"inputs": [\n  {lines}\n]}}'


def _with_parameters(config: ModelConfig, models: Models) -> JsonObject:
    parameters = examples.parameters(config, models)
    return {"parameters": parameters} if parameters else {}


def _describe_input(config: ModelConfig, spec: TensorSpec) -> JsonObject:
    return {"name": spec.name, "datatype": spec.datatype.name, "shape": examples.shape(config, spec)}


def _client_value(config: ModelConfig, spec: TensorSpec) -> str:
    """Return an expression for modserve's client, which converts lists: a list, or an array if the input is large."""
    if math.prod(examples.shape(config, spec)) <= MOST_LISTED:
        return repr(examples.nest_elements(config, spec))
    return _array(config, spec)


def _array(config: ModelConfig, spec: TensorSpec) -> str:
    """Return an expression for a numpy array with the elements of an input."""
    shape, numpy = examples.shape(config, spec), spec.datatype.own_numpy
    dtype = _DTYPES.get(spec.datatype.name) or f"np.{numpy}"
    count = math.prod(shape)
    if count <= MOST_LISTED:
        return f"np.array({examples.nest_elements(config, spec)!r}, {dtype})"
    if spec is examples.choose_inputs(config)[0]:
        return _COUNTING_ARRAYS[spec.datatype.json_kind].format(
            count=count, shape=", ".join(map(str, shape)), dtype=dtype
        )
    return f"np.full({tuple(shape)}, {examples.ONES[spec.datatype.json_kind]!r}, {dtype})"
