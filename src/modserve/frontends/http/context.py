"""What all inference calls over HTTP share."""

from modserve.protocol.http.infer_request import JsonHeads
from modserve.server import Server
from modserve.settings import HttpSettings


class CallContext:
    """The server behind the HTTP front end, its options, and its memory of requests."""

    __slots__ = ("heads", "limits", "max_json", "options", "server", "server_timing")

    def __init__(self, server: Server, options: HttpSettings) -> None:
        self.server = server
        self.options = options
        self.limits = options.limits
        self.max_json = options.max_json
        self.server_timing = options.server_timing
        self.heads = JsonHeads()
