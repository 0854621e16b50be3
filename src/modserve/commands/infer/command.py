"""``modserve infer MODEL NAME=VALUE …``: send a request to a running server and show the response."""

import json
import sys
import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace

from modserve.client.address import PORTS
from modserve.client.input_values import ClientCall, ModelMetadata, Result, TensorMetadata
from modserve.core.requests.request import ParameterValue
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Array, Tensor
from modserve.pb import inference as pb

from ..destination import Destination, destinations, one
from ..errors import RefusedError
from ..remote_server import RemoteServer, connect
from ..server_set import connect_all
from ..syntax import UsageError, add_destination, add_json, add_shape, option, parser
from . import images, output
from .arguments import InputSpec, parameter, remark_on_sizes, sample, tensors


def version(text: str) -> int:
    """Parse a version. Raises ArgumentTypeError if invalid."""
    if text.isascii() and text.isdigit() and int(text):
        return int(text)
    raise ArgumentTypeError(f"expected one version, a number from 1 on, got '{text}'; send a request to each version")


PARSER = parser(
    "infer",
    """\
Sends one inference request to a running server, and shows the response. To several servers, it sends
the request to each, and shows how long each takes and whether their outputs differ.

VALUE is a number (for all elements), a list (1,2,3 or JSON), a text, or @FILE: .npy, .npz, .json,
.txt, .csv, .bin, or a picture (with Pillow). Repeat a NAME to add a row to the batch. You may
omit NAME= if the model has one input; '@file.npz' has all inputs by name. Write a text that begins
with @ as @@. 'modserve models MODEL' lists a model's inputs.""",
    """\
  modserve infer simple INPUT0=1 INPUT1=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16
  modserve infer digits_pipeline @model_repository/digits_pipeline/seven.png --classes 2
  modserve infer digits_pipeline photo=@photo.jpg --output probabilities=probabilities.npy
  modserve infer resnet @cat.jpg --pixels imagenet --classes 5
  modserve infer simple --sample --grpc --json""",
    "0 success, 1 failure (the reason is printed), 2 wrong command line",
)
PARSER.add_argument("model", metavar="MODEL", help="The model's name.")
PARSER.add_argument("values", nargs="*", metavar="NAME=VALUE", help="Inputs.")
_GROUP = PARSER.add_argument_group("the request")
option(_GROUP, "--version N", "The version. [default: the latest ready one]", type=version)
_GROUP.add_argument("--sample", action="store_true", help="Generate data for all other inputs.")
add_shape(_GROUP)
option(_GROUP, "--outputs NAME,…", "The outputs to request. [default: all]")
option(_GROUP, "--classes K", "Return the K best classes of each output.", type=int, default=0)
option(_GROUP, "--request-id TEXT", "The request id, which appears in the response and in logs.")
option(_GROUP, "--parameter NAME=VALUE", "Request parameter; may be repeated.", action="append", default=[])
option(_GROUP, "--sequence-id ID", "Id of the request's sequence: a number or a text.", default=None)
_GROUP.add_argument("--sequence-start", action="store_true", help="Mark the first request of the sequence.")
_GROUP.add_argument("--sequence-end", action="store_true", help="Mark the last request of the sequence.")
_GROUP.add_argument("--stream", action="store_true", help="Show any number of responses as they arrive.")
_GROUP.add_argument("--grpc", action="store_true", help=f"Use gRPC, at port {PORTS['grpc']} unless --url is grpc://….")
_PIXELS = "Range of pixel values: 0 to 255, 0 to 1, -1 to 1, or by ImageNet's mean and deviation."
_GROUP = PARSER.add_argument_group("pictures")
_GROUP.add_argument("--pixels", choices=tuple(images.PIXELS), default="", help=_PIXELS)
_GROUP.add_argument("--layout", choices=images.ORDERS, default="", help="Order of the dimensions, if ambiguous.")
_GROUP = PARSER.add_argument_group("the response")
option(
    _GROUP,
    "--output [NAME=]FILE",
    f"Write outputs to a file: {' '.join(output.ENDINGS)}; may be repeated.",
    action="append",
    default=[],
)
add_json(PARSER)
add_destination(PARSER, several=True)


def work(options: Namespace) -> int:
    """Run the command and return the exit code."""
    files = output.targets(options.output)
    if options.stream and files:
        raise UsageError("option '--output' is for one response, and '--stream' for many; --json prints them all")
    places = [over_grpc(each) if options.grpc else each for each in destinations(options)]
    if len(places) > 1:
        if files or options.stream:
            one(places, f"option '--{'output' if files else 'stream'}'")
        return _on_all(places, options)
    server = connect(places[0])
    try:
        call = _call(server, options)
        begin = time.perf_counter()
        for result in _results(server, call, options):
            seconds = time.perf_counter() - begin
            if options.json:
                print(json.dumps(output.document(result), ensure_ascii=False))
            elif not files:
                print("\n".join(output.lines(result, seconds)), flush=True)
            for name, path in files:
                print(output.write(result, name, path), file=sys.stderr if options.json else sys.stdout)
    finally:
        server.close()
    return 0


def _on_all(places: Sequence[Destination], options: Namespace) -> int:
    from .several import infer_on_all, json_lines, text_lines

    with closing(connect_all(places)) as servers:
        reached = [
            each.server
            for each in servers.call(lambda server: server.metadata(options.model, options.version))
            if each.error is None
        ]
        call = _call((reached or servers.servers)[0], options)
        outcomes = infer_on_all(servers, call)
    print("\n".join((json_lines if options.json else text_lines)(outcomes)))
    return int(any(each.error is not None for each in outcomes))


def over_grpc(own: Destination) -> Destination:
    """Return the server's gRPC destination; for an HTTP URL, at the default gRPC port."""
    place = own.address
    if place.over_grpc:
        return own
    return replace(own, address=place.at_port(PORTS["grpc"], "grpcs" if place.secure else "grpc"))


def _results(server: RemoteServer, call: ClientCall, options: Namespace) -> Iterator[Result]:
    if options.stream:
        yield from server.stream(call)
    else:
        yield server.infer(call)


def _call(server: RemoteServer, options: Namespace) -> ClientCall:
    metadata = server.metadata(options.model, options.version)
    inputs = [_input(row) for row in metadata.inputs]
    if inputs and not options.values and not options.sample:
        words = " ".join(f"{each.name}=…" for each in inputs)
        raise UsageError(
            f"missing values for the inputs of '{options.model}': {'; '.join(map(str, inputs))}\n"
            f"say 'modserve infer {options.model} {words}', or --sample for generated data"
        )
    pictures = _Pictures(server, options)
    values = tensors(options.values, inputs, pictures.decode)
    values |= _samples(options, [each for each in inputs if each.name not in values])
    return ClientCall(
        options.model,
        options.version,
        values,
        _outputs(metadata, options),
        options.request_id,
        parameters(options),
        classes=options.classes,
    )


def _samples(options: Namespace, inputs: Sequence[InputSpec]) -> dict[str, Tensor]:
    """Return generated data for these inputs, if requested. Reports assumed sizes."""
    shapes = dict(options.shape)
    if shapes and not options.sample:
        raise UsageError("option '--shape' is for '--sample'")
    if absent := shapes.keys() - {each.name for each in inputs}:
        raise UsageError(f"option '--shape': no data is generated for '{min(absent)}'")
    if not options.sample:
        return {}
    samples = {each.name: sample(each, options.model, shapes.get(each.name)) for each in inputs}
    remark = remark_on_sizes(samples, [each for each in inputs if each.name not in shapes])
    if remark and not options.json:
        print(remark, file=sys.stderr)
    return samples


def _input(row: TensorMetadata) -> InputSpec:
    return InputSpec(row.name, dtypes.BY_NAME[row.datatype], row.shape)


def _outputs(metadata: ModelMetadata, options: Namespace) -> tuple[str, ...]:
    if options.outputs:
        return tuple(filter(None, options.outputs.split(",")))
    return tuple(row.name for row in metadata.outputs) if options.classes else ()


def parameters(options: Namespace) -> dict[str, ParameterValue]:
    """Return the request's parameters, including sequence parameters. Raises UsageError, INVALID_ARG."""
    values = dict(map(parameter, options.parameter))
    if options.sequence_id is not None:
        id = options.sequence_id
        values["sequence_id"] = int(id) if id.isascii() and id.isdigit() else id
        values |= {"sequence_start": options.sequence_start, "sequence_end": options.sequence_end}
    elif options.sequence_start or options.sequence_end:
        raise UsageError("options '--sequence-start' and '--sequence-end' require '--sequence-id'")
    return values


class _Pictures:
    """Decoder of pictures. Reads the model's configuration for the first picture."""

    def __init__(self, server: RemoteServer, options: Namespace) -> None:
        self._server = server
        self._options = options
        self._config: pb.ModelConfig | None = None
        self._looked = False

    def decode(self, file: str, content: bytes, spec: InputSpec) -> Array:
        return images.decode(file, content, spec, self._hints(spec), self._note)

    def _hints(self, spec: InputSpec) -> images.ImageHints:
        if not self._looked:
            self._looked = True
            try:
                self._config = self._server.config(self._options.model, self._options.version)
            except RefusedError:
                pass  # restricted: only the metadata is available
        batched = None if self._config is None else self._config.max_batch_size > 0
        formats = [] if self._config is None else [each.format for each in self._config.input if each.name == spec.name]
        order = (
            {pb.ModelInput.FORMAT_NCHW: "CHW", pb.ModelInput.FORMAT_NHWC: "HWC"}.get(formats[0], "") if formats else ""
        )
        return images.ImageHints(batched, self._options.layout or order, self._options.pixels)

    def _note(self, text: str) -> None:
        if not self._options.json:
            print(text, file=sys.stderr)
