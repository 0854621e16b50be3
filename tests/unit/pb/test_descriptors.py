"""The messages are those that clients know, and the committed files are what scripts/protos makes of protos/*.proto."""

import ast
import gc
import keyword
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from tritonclient.grpc import model_config_pb2, service_pb2

from modserve.pb import health, orca, reflection
from modserve.pb import inference as pb
from modserve.pb.descriptors import load_files, service_methods, top_level_names

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "src" / "modserve" / "pb"

OURS: list[FileDescriptor] = [pb.POOL.FindFileByName(name) for name in ("model_config.proto", "grpc_service.proto")]
HEALTH: list[FileDescriptor] = [pb.POOL.FindFileByName("grpc/health/v1/health.proto")]
REFLECTION: list[FileDescriptor] = [
    pb.POOL.FindFileByName(f"grpc/reflection/{version}/reflection.proto") for version in ("v1", "v1alpha")
]
ORCA: list[FileDescriptor] = [
    pb.POOL.FindFileByName(f"xds/{name}.proto") for name in ("data/orca/v3/orca_load_report", "service/orca/v3/orca")
]
MODULES = {"inference": pb, "health": health, "orca": orca, "reflection": reflection}
FILES = {"inference": OURS, "health": HEALTH, "orca": ORCA, "reflection": REFLECTION[:1]}
THEIRS: list[FileDescriptor] = [model_config_pb2.DESCRIPTOR, service_pb2.DESCRIPTOR]
ADDITIONS = ("inference.ModelStatisticsResponse.tenant_stats", "inference.TenantStatistics")
"""What we say beyond Triton, in fields that its clients skip."""


# ---- The committed files are current ------------------------------------------------------------------------------


def test_committed_files_are_current(tmp_path: Path) -> None:
    subprocess.run([ROOT / "scripts" / "protos", tmp_path], check=True)
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == [
        f"{name}.{kind}" for name in ("health", "inference", "orca", "reflection") for kind in ("binpb", "pyi")
    ]
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (PACKAGE / path.name).read_bytes(), (
            f"{path.name} is out of date: run scripts/protos"
        )


@pytest.mark.parametrize("name", FILES)
def test_descriptors_carry_no_source_info(name: str) -> None:
    files = FileDescriptorSet.FromString((PACKAGE / f"{name}.binpb").read_bytes()).file
    assert [file.HasField("source_code_info") for file in files] == [False for _ in files]


@pytest.mark.parametrize("name", FILES)
def test_stubs_name_exactly_what_the_module_has(name: str) -> None:
    declared = set(stub_names(ast.parse((PACKAGE / f"{name}.pyi").read_text("utf-8")).body))
    present = {"POOL", "SERVICE", "METHODS"}
    for file in FILES[name]:
        for enum in file.enum_types_by_name.values():
            present |= enum_names(enum, "")
        for message in file.message_types_by_name.values():
            present |= message_names(message, "")
    assert declared == present
    assert {name for name in declared if "." not in name} <= set(vars(MODULES[name]))


def stub_names(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    """Dotted names of the public classes, attributes and properties in a stub."""
    for node in body:
        match node:
            case ast.ClassDef(name=name) if not name.startswith("_"):
                yield prefix + name
                yield from stub_names(node.body, f"{prefix}{name}.")
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield prefix + name
            case ast.FunctionDef(name=name, decorator_list=[ast.Name(id="property")]):
                yield prefix + name


def message_names(message: Descriptor, prefix: str) -> set[str]:
    inner = f"{prefix}{message.name}."
    names = {prefix + message.name, f"{inner}DESCRIPTOR"}
    names |= {f"{inner}{field.name.upper()}_FIELD_NUMBER" for field in message.fields}
    names |= {inner + field.name for field in message.fields if not keyword.iskeyword(field.name)}
    for enum in message.enum_types:
        names |= enum_names(enum, inner)
    for nested in message.nested_types:
        names |= message_names(nested, inner)
    return names


def enum_names(enum: EnumDescriptor, prefix: str) -> set[str]:
    return {prefix + enum.name, *(prefix + value.name for value in enum.values)}


# ---- They are the descriptors of tritonclient ---------------------------------------------------------------------


def test_no_difference_from_tritonclient() -> None:
    ours, theirs = common_facts(protos(OURS)), facts(protos(THEIRS))
    assert len(theirs) > 500  # or else the comparison sees too little
    found = differences(ours, theirs)
    assert not found, "\n".join(["protos/*.proto differ from tritonclient:", *found])


def protos(files: Iterable[FileDescriptor]) -> list[FileDescriptorProto]:
    return [FileDescriptorProto.FromString(file.serialized_pb) for file in files]


def differences(ours: dict[str, str], theirs: dict[str, str]) -> list[str]:
    """One line for each fact that only one side has, or that the two sides tell differently."""
    lines = [f"{name}: missing, should be {theirs[name]}" for name in theirs.keys() - ours.keys()]
    lines += [f"{name}: extra, is {ours[name]}" for name in ours.keys() - theirs.keys()]
    common = ours.keys() & theirs.keys()
    lines += [f"{name}: is {ours[name]}, should be {theirs[name]}" for name in common if ours[name] != theirs[name]]
    return sorted(lines)


def common_facts(files: Iterable[FileDescriptorProto]) -> dict[str, str]:
    """Those of our files, without the additions."""
    return {name: fact for name, fact in facts(files).items() if not name.startswith(ADDITIONS)}


def facts(files: Iterable[FileDescriptorProto]) -> dict[str, str]:
    """Everything that makes up the messages, enums and services of some files, by full name; order plays no part."""
    told: dict[str, str] = {}
    for file in files:
        told[file.name] = f"{file.syntax} package {file.package} importing {list(file.dependency)}" + rest(file)
        for enum in file.enum_type:
            told.update(enum_facts(enum, f"{file.package}."))
        for message in file.message_type:
            told.update(message_facts(message, f"{file.package}."))
        for service in file.service:
            told[f"{file.package}.{service.name}"] = "service" + rest(service)
            for method in service.method:
                request = "stream " * method.client_streaming + method.input_type
                response = "stream " * method.server_streaming + method.output_type
                name = f"{file.package}.{service.name}.{method.name}"
                told[name] = f"rpc ({request}) returns ({response})" + rest(method)
    return told


def enum_facts(enum: EnumDescriptorProto, prefix: str) -> Iterator[tuple[str, str]]:
    yield prefix + enum.name, "enum" + rest(enum)
    for value in enum.value:
        yield f"{prefix}{enum.name}.{value.name}", f"value {value.number}" + rest(value)


def message_facts(message: DescriptorProto, prefix: str) -> Iterator[tuple[str, str]]:
    inner = f"{prefix}{message.name}."
    yield prefix + message.name, "message" + rest(message)
    for oneof in message.oneof_decl:
        yield inner + oneof.name, "oneof" + rest(oneof)
    for field in message.field:
        label = FieldDescriptorProto.Label.Name(field.label).removeprefix("LABEL_").lower()
        kind = field.type_name or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
        oneof_name = f" in {message.oneof_decl[field.oneof_index].name}" if field.HasField("oneof_index") else ""
        yield inner + field.name, f"{label} {kind} = {field.number}{oneof_name}" + rest(field)
    for enum in message.enum_type:
        yield from enum_facts(enum, inner)
    for nested in message.nested_type:
        yield from message_facts(nested, inner)


TOLD = (
    "name", "package", "dependency", "syntax", "message_type", "enum_type", "service", "method", "nested_type",
    "oneof_decl", "field", "value", "number", "label", "type", "type_name", "oneof_index", "input_type", "output_type",
    "client_streaming", "server_streaming",
)  # fmt: skip


def rest(proto: Message) -> str:
    """Whatever else a descriptor says: options (that of map entries, too), JSON names, defaults, reserved ranges."""
    copy = type(proto)()
    copy.CopyFrom(proto)
    if isinstance(copy, FieldDescriptorProto) and copy.json_name == camel_case(copy.name):
        copy.ClearField("json_name")  # the default, which some descriptors repeat
    for name in TOLD:
        if name in copy.DESCRIPTOR.fields_by_name:
            copy.ClearField(name)
    text = text_format.MessageToString(copy, as_one_line=True).replace("options { }", "").strip()
    return f" [{text}]" if text else ""


def camel_case(name: str) -> str:
    first, *words = name.split("_")
    return first + "".join(word.capitalize() for word in words)


HEALTH_FACTS = """
Health.Check: rpc (.grpc.health.v1.HealthCheckRequest) returns (.grpc.health.v1.HealthCheckResponse)
Health.List: rpc (.grpc.health.v1.HealthListRequest) returns (.grpc.health.v1.HealthListResponse)
Health.Watch: rpc (.grpc.health.v1.HealthCheckRequest) returns (stream .grpc.health.v1.HealthCheckResponse)
Health: service
HealthCheckRequest.service: optional string = 1
HealthCheckRequest: message
HealthCheckResponse.ServingStatus.NOT_SERVING: value 2
HealthCheckResponse.ServingStatus.SERVICE_UNKNOWN: value 3
HealthCheckResponse.ServingStatus.SERVING: value 1
HealthCheckResponse.ServingStatus.UNKNOWN: value 0
HealthCheckResponse.ServingStatus: enum
HealthCheckResponse.status: optional .grpc.health.v1.HealthCheckResponse.ServingStatus = 1
HealthCheckResponse: message
HealthListRequest: message
HealthListResponse.StatusesEntry.key: optional string = 1
HealthListResponse.StatusesEntry.value: optional .grpc.health.v1.HealthCheckResponse = 2
HealthListResponse.StatusesEntry: message [options { map_entry: true }]
HealthListResponse.statuses: repeated .grpc.health.v1.HealthListResponse.StatusesEntry = 1
HealthListResponse: message
"""
REFLECTION_FACTS = """
ErrorResponse.error_code: optional int32 = 1
ErrorResponse.error_message: optional string = 2
ErrorResponse: message
ExtensionNumberResponse.base_type_name: optional string = 1
ExtensionNumberResponse.extension_number: repeated int32 = 2
ExtensionNumberResponse: message
ExtensionRequest.containing_type: optional string = 1
ExtensionRequest.extension_number: optional int32 = 2
ExtensionRequest: message
FileDescriptorResponse.file_descriptor_proto: repeated bytes = 1
FileDescriptorResponse: message
ListServiceResponse.service: repeated .PACKAGE.ServiceResponse = 1
ListServiceResponse: message
ServerReflection.ServerReflectionInfo: rpc (stream .PACKAGE.ServerReflectionRequest) \
returns (stream .PACKAGE.ServerReflectionResponse)
ServerReflection: service
ServerReflectionRequest.all_extension_numbers_of_type: optional string = 6 in message_request
ServerReflectionRequest.file_by_filename: optional string = 3 in message_request
ServerReflectionRequest.file_containing_extension: optional .PACKAGE.ExtensionRequest = 5 in message_request
ServerReflectionRequest.file_containing_symbol: optional string = 4 in message_request
ServerReflectionRequest.host: optional string = 1
ServerReflectionRequest.list_services: optional string = 7 in message_request
ServerReflectionRequest.message_request: oneof
ServerReflectionRequest: message
ServerReflectionResponse.all_extension_numbers_response: optional .PACKAGE.ExtensionNumberResponse = 5 \
in message_response
ServerReflectionResponse.error_response: optional .PACKAGE.ErrorResponse = 7 in message_response
ServerReflectionResponse.file_descriptor_response: optional .PACKAGE.FileDescriptorResponse = 4 in message_response
ServerReflectionResponse.list_services_response: optional .PACKAGE.ListServiceResponse = 6 in message_response
ServerReflectionResponse.message_response: oneof
ServerReflectionResponse.original_request: optional .PACKAGE.ServerReflectionRequest = 2
ServerReflectionResponse.valid_host: optional string = 1
ServerReflectionResponse: message
ServiceResponse.name: optional string = 1
ServiceResponse: message
"""


@pytest.mark.parametrize(
    ("file", "expected"),
    [(HEALTH[0], HEALTH_FACTS), (REFLECTION[0], REFLECTION_FACTS), (REFLECTION[1], REFLECTION_FACTS)],
    ids=["health", "reflection v1", "reflection v1alpha"],
)
def test_the_small_protocols_are_as_they_are_published(file: FileDescriptor, expected: str) -> None:
    told = facts(protos([file]))
    assert told.pop(file.name) == f"proto3 package {file.package} importing []"
    lines = expected.replace("\\\n", "").replace("PACKAGE", file.package).strip().splitlines()
    assert sorted(f"{name.removeprefix(file.package + '.')}: {fact}" for name, fact in told.items()) == lines


# ---- The comparison can fail --------------------------------------------------------------------------------------


class Mutable:
    """Our descriptors, to be damaged."""

    def __init__(self) -> None:
        self.files = protos(OURS)
        self.service = self.files[1].service[0]

    def message(self, path: str) -> DescriptorProto:
        name, *inner = path.split(".")
        found = next(message for file in self.files for message in file.message_type if message.name == name)
        for name in inner:
            found = next(message for message in found.nested_type if message.name == name)
        return found

    def field(self, path: str, name: str) -> FieldDescriptorProto:
        return next(field for field in self.message(path).field if field.name == name)


def add_field(ours: Mutable) -> None:
    ours.message("ModelInferRequest.InferInputTensor").field.add(name="stray", number=9, label=1, type=9)


def add_message(ours: Mutable) -> None:
    ours.files[0].message_type.add(name="Stray")


def drop_field(ours: Mutable) -> None:
    del ours.message("ModelConfig").field[-1]


def rename_field(ours: Mutable) -> None:
    ours.field("ServerLiveResponse", "live").name = "alive"


def renumber_field(ours: Mutable) -> None:
    ours.field("ModelInferRequest", "raw_input_contents").number = 8


def retype_field(ours: Mutable) -> None:
    ours.field("StatisticDuration", "ns").type = FieldDescriptorProto.TYPE_INT64


def relabel_field(ours: Mutable) -> None:
    ours.field("BatchInput", "source_input").label = FieldDescriptorProto.LABEL_OPTIONAL


def leave_oneof(ours: Mutable) -> None:
    ours.field("InferParameter", "uint64_param").ClearField("oneof_index")


def unmake_map(ours: Mutable) -> None:
    ours.message("ModelConfig.MetricTagsEntry").ClearField("options")


def drop_enum_value(ours: Mutable) -> None:
    del ours.files[0].enum_type[0].value[-1]


def add_nested_enum_value(ours: Mutable) -> None:
    ours.message("ModelInstanceGroup").enum_type[0].value.add(name="KIND_TPU", number=4)


def drop_rpc(ours: Mutable) -> None:
    del ours.service.method[-1]


def stream_rpc(ours: Mutable) -> None:
    ours.service.method[5].server_streaming = True


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (add_field, "ModelInferRequest.InferInputTensor.stray: extra, is optional string = 9"),
        (add_message, "Stray: extra, is message"),
        (drop_field, "ModelConfig.model_metrics: missing, should be optional .inference.ModelMetrics = 26"),
        (renumber_field, "ModelInferRequest.raw_input_contents: is repeated bytes = 8, should be repeated bytes = 7"),
        (retype_field, "StatisticDuration.ns: is optional int64 = 2, should be optional uint64 = 2"),
        (relabel_field, "BatchInput.source_input: is optional string = 4, should be repeated string = 4"),
        (
            leave_oneof,
            "InferParameter.uint64_param: is optional uint64 = 5, should be optional uint64 = 5 in parameter_choice",
        ),
        (unmake_map, "ModelConfig.MetricTagsEntry: is message, should be message [options { map_entry: true }]"),
        (drop_enum_value, "DataType.TYPE_BF16: missing, should be value 14"),
        (add_nested_enum_value, "ModelInstanceGroup.Kind.KIND_TPU: extra, is value 4"),
        (
            drop_rpc,
            "GRPCInferenceService.LogSettings: missing, "
            "should be rpc (.inference.LogSettingsRequest) returns (.inference.LogSettingsResponse)",
        ),
        (
            stream_rpc,
            "GRPCInferenceService.ModelInfer: "
            "is rpc (.inference.ModelInferRequest) returns (stream .inference.ModelInferResponse), "
            "should be rpc (.inference.ModelInferRequest) returns (.inference.ModelInferResponse)",
        ),
    ],
)
def test_comparison_names_each_difference(damage: Callable[[Mutable], None], expected: str) -> None:
    ours = Mutable()
    damage(ours)
    assert differences(common_facts(ours.files), facts(protos(THEIRS))) == [f"inference.{expected}"]


def test_comparison_works_in_both_directions() -> None:
    ours = Mutable()
    rename_field(ours)
    assert differences(common_facts(ours.files), facts(protos(THEIRS))) == [
        'inference.ServerLiveResponse.alive: extra, is optional bool = 1 [json_name: "live"]',
        "inference.ServerLiveResponse.live: missing, should be optional bool = 1",
    ]


# ---- The two work side by side ------------------------------------------------------------------------------------


def test_methods_are_those_of_the_service() -> None:
    service = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert service.full_name == pb.SERVICE
    assert list(pb.METHODS) == [method.name for method in service.methods]
    for name, method in pb.METHODS.items():
        assert method.name == name
        assert method.response is getattr(pb, method.response.DESCRIPTOR.name)
    assert pb.METHODS["ModelConfig"].request is pb.ModelConfigRequest
    assert pb.METHODS["ModelInfer"].response is pb.ModelInferResponse
    streaming = {name: (method.client_streaming, method.server_streaming) for name, method in pb.METHODS.items()}
    assert streaming.pop("ModelStreamInfer") == (True, True)
    assert set(streaming.values()) == {(False, False)}


def test_enums_know_names_and_numbers() -> None:
    assert pb.DataType.Value("TYPE_FP32") == pb.DataType.TYPE_FP32 == pb.TYPE_FP32 == 11
    assert pb.DataType.Name(pb.TYPE_STRING) == "TYPE_STRING"
    assert pb.ModelInstanceGroup.Kind.Name(pb.ModelInstanceGroup.KIND_CPU) == "KIND_CPU"


def test_config_is_read_from_text() -> None:
    config = text_format.Parse(
        'name: "m" input [{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] }] dynamic_batching {} '
        "instance_group { rate_limiter { resources { name: 'r' global: true } } }",
        pb.ModelConfig(),
        descriptor_pool=pb.POOL,
    )
    assert config.input[0] == pb.ModelInput(name="x", data_type="TYPE_FP32", dims=[-1])
    assert config.WhichOneof("scheduling_choice") == "dynamic_batching"
    assert config.instance_group[0].rate_limiter.resources == [
        pb.ModelRateLimiter.Resource(name="r", **{"global": True})
    ]


def test_each_pool_has_classes_of_its_own() -> None:
    pool = DescriptorPool()
    files = load_files(pool, (PACKAGE / "inference.binpb").read_bytes())
    assert [file.name for file in files] == ["model_config.proto", "grpc_service.proto"]
    names = top_level_names(files, "elsewhere")
    assert names["TYPE_BF16"] == 14
    assert names["ModelInferRequest"] is not pb.ModelInferRequest
    assert service_methods(pool.FindServiceByName(pb.SERVICE))["ModelInfer"].request is names["ModelInferRequest"]


def test_nested_classes_are_held_and_know_their_place() -> None:
    names = top_level_names(load_files(DescriptorPool(), (PACKAGE / "inference.binpb").read_bytes()), "elsewhere")
    gc.collect()
    nested = vars(names["ModelInferRequest"])["InferInputTensor"]
    assert repr(nested) == "<class 'elsewhere.ModelInferRequest.InferInputTensor'>"
    assert type(pb.ModelInferRequest().inputs.add()) is pb.ModelInferRequest.InferInputTensor
