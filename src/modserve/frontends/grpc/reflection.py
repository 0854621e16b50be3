"""Server reflection under both of its names: ``v1``, which clients ask for first today, and ``v1alpha``.

Their messages are the same on the wire. Names are looked up in the private pool, which has all that is served.
"""

from collections.abc import Callable, Iterable

from google.protobuf.descriptor import FileDescriptor

from modserve.pb import reflection as pb

from .infer_requests import parse
from .message_inflater import MessageInflater
from .rpc import RpcCall

SERVICES = (pb.SERVICE, "grpc.reflection.v1alpha.ServerReflection")

_NOT_FOUND = 5
_INVALID_ARGUMENT = 3


class ReflectionService:
    """Descriptions of the services `names` and their messages."""

    def __init__(self, names: Iterable[str], inflater: MessageInflater) -> None:
        self._inflater = inflater
        self._names = sorted(names)
        self._makers: dict[str, Callable[[pb.ServerReflectionRequest], pb.ServerReflectionResponse]] = {
            "list_services": self._services,
            "file_by_filename": lambda request: _files(pb.POOL.FindFileByName(request.file_by_filename)),
            "file_containing_symbol": lambda request: _files(_file_containing(request.file_containing_symbol)),
            "file_containing_extension": _file_containing_extension,
            "all_extension_numbers_of_type": _extension_numbers,
        }

    async def ServerReflectionInfo(self, call: RpcCall) -> None:
        """Send one response for each request, in order. Raises INVALID_ARG for bytes that are no request."""
        while (sent := await call.read()) is not None:
            request = parse(pb.ServerReflectionRequest, await self._inflater.short(sent))
            assert isinstance(request, pb.ServerReflectionRequest)
            await call.write(self.respond(request).SerializeToString())

    def respond(self, request: pb.ServerReflectionRequest) -> pb.ServerReflectionResponse:
        """Return the response to a request; an unknown name has a response, too."""
        make = self._makers.get(request.WhichOneof("message_request") or "")
        if make is None:
            response = _error(_INVALID_ARGUMENT, "the request is of no kind that this server supports")
        else:
            try:
                response = make(request)
            except KeyError as error:
                response = _error(_NOT_FOUND, str(error.args[0]) if error.args else "not found")
        response.valid_host = request.host
        response.original_request.CopyFrom(request)
        return response

    def _services(self, request: pb.ServerReflectionRequest) -> pb.ServerReflectionResponse:
        listed = pb.ListServiceResponse(service=[pb.ServiceResponse(name=name) for name in self._names])
        return pb.ServerReflectionResponse(list_services_response=listed)


def _file_containing(symbol: str) -> FileDescriptor:
    """Find a file. Raises KeyError. Pools do not know the names of methods."""
    try:
        return pb.POOL.FindFileContainingSymbol(symbol)
    except KeyError:
        service, _, method = symbol.rpartition(".")
        descriptor = pb.POOL.FindServiceByName(service)
        if method in descriptor.methods_by_name:
            return descriptor.file
        raise


def _files(file: FileDescriptor) -> pb.ServerReflectionResponse:
    """Return the file, and behind it all that it imports, each once."""
    files: dict[str, bytes] = {}

    def add(each: FileDescriptor) -> None:
        if each.name not in files:
            for dependency in each.dependencies:
                add(dependency)
            files[each.name] = each.serialized_pb

    add(file)
    response = pb.FileDescriptorResponse(file_descriptor_proto=reversed(files.values()))
    return pb.ServerReflectionResponse(file_descriptor_response=response)


def _file_containing_extension(request: pb.ServerReflectionRequest) -> pb.ServerReflectionResponse:
    named = request.file_containing_extension
    message = pb.POOL.FindMessageTypeByName(named.containing_type)
    extension = pb.POOL.FindExtensionByNumber(message, named.extension_number)
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
