"""Message classes from a serialised descriptor set, registered nowhere but in a pool of their own."""

from collections.abc import Sequence
from typing import NamedTuple

from google.protobuf.descriptor import Descriptor, FileDescriptor, ServiceDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass


class Method(NamedTuple):
    """RPC of a service."""

    name: str
    request: type[Message]
    response: type[Message]
    client_streaming: bool
    server_streaming: bool


def load_files(pool: DescriptorPool, descriptor_set: bytes) -> list[FileDescriptor]:
    """Adds all files of a `FileDescriptorSet` to the pool; a file must come after those it imports."""
    files = FileDescriptorSet.FromString(descriptor_set).file
    return [pool.AddSerializedFile(file.SerializeToString()) for file in files]


def top_level_names(files: Sequence[FileDescriptor], module: str) -> dict[str, type[Message] | EnumTypeWrapper | int]:
    """Return what protoc would define in a module: message classes, enums, and the values of those enums."""
    names: dict[str, type[Message] | EnumTypeWrapper | int] = {}
    for file in files:
        for name, enum in file.enum_types_by_name.items():
            names[name] = EnumTypeWrapper(enum)
            names.update((value.name, value.number) for value in enum.values)
        for name, message in file.message_types_by_name.items():
            names[name] = _message_class(message, module, name)
    return names


def service_methods(service: ServiceDescriptor) -> dict[str, Method]:
    """Return all RPCs of a service by name, in the order of the file."""
    methods = {}
    for each in service.methods:
        request, response = GetMessageClass(each.input_type), GetMessageClass(each.output_type)
        methods[each.name] = Method(each.name, request, response, each.client_streaming, each.server_streaming)
    return methods


def _message_class(message: Descriptor, module: str, qualname: str) -> type[Message]:
    """Return the class and those nested in it, each with the module and name by which error texts call it.

    Protobuf itself holds classes weakly: a nested class would be made again whenever no reference to it is left.
    """
    cls = GetMessageClass(message)
    cls.__module__ = module
    cls.__qualname__ = qualname
    for nested in message.nested_types:
        setattr(cls, nested.name, _message_class(nested, module, f"{qualname}.{nested.name}"))
    return cls
