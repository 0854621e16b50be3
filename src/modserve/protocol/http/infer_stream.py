"""The messages of ``infer_stream``: responses as ``infer`` writes them, each saying whether it is the last.

That is the boolean parameter ``triton_final_response``, as on the streams of gRPC. The last message of every complete
stream has it set, be that a response, an error, or a response without outputs when the end came alone.
"""

from dataclasses import replace

import orjson

from modserve.core.errors import ModserveError
from modserve.core.response import InferenceResponse
from modserve.protocol.http import infer_response
from modserve.protocol.http.generate import text_only
from modserve.protocol.reply import Reply

FINAL = "triton_final_response"


def encode_response(response: InferenceResponse, reply: Reply, final: bool) -> bytes:
    """A response with all its data as JSON, whatever `reply` says of binary. Raises INVALID_ARG."""
    marked = replace(response, parameters={**response.parameters, FINAL: final})
    try:
        body = infer_response.encode_response(marked, Reply(places=reply.places))
    except ModserveError as error:
        raise text_only(error) from None
    return b"".join(body.parts)


def encode_error(error: ModserveError, request_id: str, final: bool) -> bytes:
    """A failure in the stream, which goes on if it is not `final`."""
    message = orjson.loads(infer_response.encode_error(error))
    named = {"id": request_id} if request_id else {}
    return orjson.dumps({**message, **named, "parameters": {FINAL: final}})
