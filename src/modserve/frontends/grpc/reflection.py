"""Server reflection under both of its names: ``v1``, which clients ask for first today, and ``v1alpha``.

Their messages are the same on the wire. Names are looked up in the private pool, which has all that is served.
"""

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, TypeAlias

import grpc
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import DecodeError

from modserve.core.errors import invalid
from modserve.pb import reflection as pb

from .inflating import Inflating

SERVICES = (pb.SERVICE, "grpc.reflection.v1alpha.ServerReflection")

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_NOT_FOUND = 5
_INVALID_ARGUMENT = 3


class ReflectionService:
    """Tells of the services `names` and of their messages."""

    def __init__(self, names: Iterable[str], inflating: Inflating) -> None:
        self._inflating = inflating
        self._names = sorted(names)
        self._answers: dict[str, Callable[[pb.ServerReflectionRequest], pb.ServerReflectionResponse]] = {
            "list_services": self._services,
            "file_by_filename": lambda request: _files(pb.POOL.FindFileByName(request.file_by_filename)),
            "file_containing_symbol": lambda request: _files(_file_containing(request.file_containing_symbol)),
            "file_containing_extension": _file_containing_extension,
            "all_extension_numbers_of_type": _extension_numbers,
        }

    async def ServerReflectionInfo(self, messages: AsyncIterator[bytes], context: Context) -> None:
        """One answer for each request, in their order. Raises INVALID_ARG for bytes that are no request."""
        async for sent in messages:
            data, inflated = await self._inflating.inflated(sent)
            if inflated is not None:
                inflated.release()  # what is asked for is short, or refused
            try:
                request = pb.ServerReflectionRequest.FromString(data)
            except DecodeError:
                name = pb.ServerReflectionRequest.DESCRIPTOR.full_name
                raise invalid(f"Unable to parse request: {len(data)} bytes are no {name}") from None
            await context.write(self.answer(request).SerializeToString())

    def answer(self, request: pb.ServerReflectionRequest) -> pb.ServerReflectionResponse:
        """What a request asks for. A name that is not there is an answer, too."""
        answer = self._answers.get(request.WhichOneof("message_request") or "")
        if answer is None:
            response = _error(_INVALID_ARGUMENT, "the request asks for nothing that this server knows of")
        else:
            try:
                response = answer(request)
            except KeyError as error:
                response = _error(_NOT_FOUND, str(error.args[0]) if error.args else "not found")
        response.valid_host = request.host
        response.original_request.CopyFrom(request)
        return response

    def _services(self, request: pb.ServerReflectionRequest) -> pb.ServerReflectionResponse:
        listed = pb.ListServiceResponse(service=[pb.ServiceResponse(name=name) for name in self._names])
        return pb.ServerReflectionResponse(list_services_response=listed)


def _file_containing(symbol: str) -> FileDescriptor:
    """Raises KeyError. Pools do not know the names of methods."""
    try:
        return pb.POOL.FindFileContainingSymbol(symbol)
    except KeyError:
        service, _, method = symbol.rpartition(".")
        found = pb.POOL.FindServiceByName(service)
        if method in found.methods_by_name:
            return found.file
        raise


def _files(file: FileDescriptor) -> pb.ServerReflectionResponse:
    """The file, and behind it all that it imports, each once."""
    found: dict[str, bytes] = {}

    def add(each: FileDescriptor) -> None:
        if each.name not in found:
            for dependency in each.dependencies:
                add(dependency)
            found[each.name] = each.serialized_pb

    add(file)
    files = pb.FileDescriptorResponse(file_descriptor_proto=reversed(found.values()))
    return pb.ServerReflectionResponse(file_descriptor_response=files)


def _file_containing_extension(request: pb.ServerReflectionRequest) -> pb.ServerReflectionResponse:
    wanted = request.file_containing_extension
    message = pb.POOL.FindMessageTypeByName(wanted.containing_type)
    extension = pb.POOL.FindExtensionByNumber(message, wanted.extension_number)
    return _files(pb.POOL.FindFileContainingSymbol(extension.full_name))


def _extension_numbers(request: pb.ServerReflectionRequest) -> pb.ServerReflectionResponse:
    message = pb.POOL.FindMessageTypeByName(request.all_extension_numbers_of_type)
    numbers = pb.ExtensionNumberResponse(
        base_type_name=message.full_name,
        extension_number=sorted(extension.number for extension in pb.POOL.FindAllExtensions(message)),
    )
    return pb.ServerReflectionResponse(all_extension_numbers_response=numbers)


def _error(code: int, message: str) -> pb.ServerReflectionResponse:
    return pb.ServerReflectionResponse(error_response=pb.ErrorResponse(error_code=code, error_message=message[:1000]))
