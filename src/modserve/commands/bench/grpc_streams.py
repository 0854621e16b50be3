"""gRPC streams: a connection per slot, with one ModelStreamInfer for all its requests."""

from google.protobuf.message import DecodeError

from modserve.client.values import FINAL
from modserve.pb import inference as pb

from .grpc_slots import GrpcSlot, SharedConnection
from .http2 import PREFIX, GrpcMessage, Http2ClientConnection
from .slots import ResponseListener

_LONGEST_ERROR = 300
_UNREADABLE = "the server's response cannot be read"


class StreamSlot(GrpcSlot):
    """A request at a time on a stream of its own, begun again when it has ended.

    A model that is not `decoupled` gives one response to a request. For one that is, each response is reported to the
    owner, and the request is over with that which says that it is the last.
    """

    def __init__(self, shared: SharedConnection, owner: ResponseListener, decoupled: bool) -> None:
        super().__init__(shared, owner)
        self._decoupled = decoupled
        self._carrier: Http2ClientConnection | None = None
        """The connection that the stream is on."""
        self._received = bytearray()
        self._error = ""
        """Of the request under way, which is not over with its first error."""

    def _send(self, connection: Http2ClientConnection, message: GrpcMessage) -> None:
        self._error = ""
        if not self._stream or self._carrier is not connection:
            self._received.clear()
            self._carrier = connection
            self._stream = connection.open(self)
        if self._stream:
            connection.send_message(self._stream, message.body)

    def abort(self, why: str) -> None:
        """With the stream, so that nothing comes back of the request later on."""
        stream, self._stream = self._stream, 0
        if self._carrier is not None:
            self._carrier.reset(stream)
        self._finish(why)

    def on_end(self, error: str) -> None:
        self._stream = 0
        self._finish(error or "the server has ended the stream")

    def on_data(self, data: bytes) -> None:
        received = self._received
        received += data
        while len(received) >= PREFIX:
            end = PREFIX + int.from_bytes(received[1:PREFIX], "big")
            if len(received) < end:
                return
            message = bytes(received[PREFIX:end])
            del received[:end]
            try:
                response = pb.ModelStreamInferResponse.FromString(message)
            except DecodeError:
                self.abort(_UNREADABLE)
                return
            self._read(response)

    def _read(self, response: pb.ModelStreamInferResponse) -> None:
        if not self.start:
            return
        if response.error_message:
            self._error = response.error_message[:_LONGEST_ERROR]
        if not self._decoupled:
            self._finish(self._error)
            return
        answer = response.infer_response
        if answer.outputs and not response.error_message:
            self._owner.on_response(self)
        # An error before the model has the request says nothing of what is to come: nothing is.
        if answer.parameters[FINAL].bool_param if FINAL in answer.parameters else response.error_message:
            self._finish(self._error)
