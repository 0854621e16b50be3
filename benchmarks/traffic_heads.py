"""Heads that real clients send: facts, each with its source.

The recorded ones are from connections of these programs to this server on 2026-11-28; of those that could not be run
here, the source says what they send. Lines end with " | ". In heads of HTTP, `{host}`, `{length}` and `{type}` are
filled in; in the fields of gRPC's header blocks, `{path}`, `{host}` and `{timeout}`. There, a sign says how the encoder
writes the field: `+` into the dynamic table, `-` without an index, `!` as one that is never indexed. What stands in the
static table is always written as its index.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class HttpClient:
    """The lines of a head after the request line. A caller's own follow them."""

    name: str
    source: str
    lines: str


HTTP_CLIENTS = (
    HttpClient(
        "tritonclient.http",
        "recorded: tritonclient 2.73.0, geventhttpclient 2.6.1",
        "User-Agent: python/gevent-http-client-2.6.1 | Host: {host} | Content-Length: {length}",
    ),
    HttpClient(
        "tritonclient.http.aio",
        "recorded: tritonclient 2.73.0, aiohttp 3.14.5",
        "Host: {host} | Accept: */* | Accept-Encoding: gzip, deflate, br | User-Agent: Python/3.11 aiohttp/3.14.5 | "
        "Content-Length: {length} | Content-Type: application/octet-stream",
    ),
    HttpClient(
        "perf_analyzer",
        "recorded: perf_analyzer of tritonclient 2.48.0's wheel",
        "Host: {host} | User-Agent: libcurl-agent/1.0 | Accept: */* | Content-Type: application/octet-stream | "
        "Content-Length: {length}",
    ),
    HttpClient(
        "requests",
        "recorded: requests 2.34.2",
        "Host: {host} | User-Agent: python-requests/2.34.2 | Accept-Encoding: gzip, deflate, br | Accept: */* | "
        "Connection: keep-alive | Content-Length: {length} | Content-Type: {type}",
    ),
    HttpClient(
        "httpx",
        "recorded: httpx 0.28.1",
        "Host: {host} | Accept: */* | Accept-Encoding: gzip, deflate, br | Connection: keep-alive | "
        "User-Agent: python-httpx/0.28.1 | Content-Length: {length} | Content-Type: {type}",
    ),
    HttpClient(
        "aiohttp",
        "recorded: aiohttp 3.14.5",
        "Host: {host} | Accept: */* | Accept-Encoding: gzip, deflate, br | User-Agent: Python/3.11 aiohttp/3.14.5 | "
        "Content-Length: {length} | Content-Type: {type}",
    ),
    HttpClient(
        "urllib3",
        "recorded: urllib3 2.8.0",
        "Host: {host} | Accept-Encoding: identity | Content-Length: {length} | User-Agent: python-urllib3/2.8.0 | "
        "Content-Type: {type}",
    ),
    HttpClient(
        "curl",
        "recorded: curl 7.88.1",
        "Host: {host} | User-Agent: curl/7.88.1 | Accept: */* | Content-Type: {type} | Content-Length: {length}",
    ),
    HttpClient(
        "node's fetch",
        "recorded: node 20.20.2",
        "host: {host} | connection: keep-alive | content-type: {type} | accept: */* | accept-language: * | "
        "sec-fetch-mode: cors | user-agent: node | accept-encoding: gzip, deflate | content-length: {length}",
    ),
    HttpClient(
        "node's http",
        "recorded: node 20.20.2",
        "Content-Type: {type} | Content-Length: {length} | Host: {host} | Connection: keep-alive",
    ),
    HttpClient(
        "Go",
        "written down: golang/go, src/net/http/request.go and transport.go",
        "Host: {host} | User-Agent: Go-http-client/1.1 | Content-Length: {length} | Content-Type: {type} | "
        "Accept-Encoding: gzip",
    ),
    HttpClient(
        "Java's HttpClient",
        "written down: openjdk/jdk, jdk/internal/net/http/Http1Request.java, version HTTP_1_1",
        "Content-Length: {length} | Host: {host} | User-Agent: Java-http-client/21.0.5 | Content-Type: {type}",
    ),
    HttpClient(
        "OkHttp",
        "written down: square/okhttp, BridgeInterceptor.kt",
        "Content-Type: {type} | Content-Length: {length} | Host: {host} | Connection: Keep-Alive | "
        "Accept-Encoding: gzip | User-Agent: okhttp/4.12.0",
    ),
    HttpClient(
        "Apache HttpClient",
        "written down: apache/httpcomponents-client, client5 HttpClientBuilder.java and its interceptors",
        "Accept-Encoding: gzip, x-gzip, deflate | Content-Length: {length} | Content-Type: {type} | Host: {host} | "
        "Connection: keep-alive | User-Agent: Apache-HttpClient/5.3.1 (Java/21.0.5)",
    ),
    HttpClient(
        ".NET's HttpClient",
        "written down: dotnet/runtime, System/Net/Http/SocketsHttpHandler/HttpConnection.cs",
        "Host: {host} | Content-Type: {type} | Content-Length: {length}",
    ),
    HttpClient(
        "reqwest",
        "written down: seanmonstar/reqwest and hyperium/hyper, which writes names in small letters",
        "content-type: {type} | accept: */* | host: {host} | content-length: {length}",
    ),
)

ENVOY = HttpClient(
    "Envoy",
    "recorded: Envoy 1.40 with deploy/gateways/envoy.yaml, before it tritonclient.http",
    "host: {host} | user-agent: python/gevent-http-client-2.6.1 | content-length: {length} | "
    "x-forwarded-for: 192.0.2.2 | x-forwarded-proto: http | x-envoy-external-address: 127.0.0.1",
)
WRK = HttpClient(
    "wrk",
    "wrk 4.1.0, written down from the way overhead.py starts it",
    "Host: {host} | Content-Type: application/json | Content-Length: {length}",
)


@dataclass(frozen=True)
class GrpcClient:
    """How an encoder writes the fields of a call.

    `huffman`: strings that this makes shorter; else none. `names`: a name that a table has is written as its index.
    `shuffled`: the order of fields after the pseudo-header ones is another in each call. `windows`: frames that enlarge
    windows go along with each call. `metadata` is the sign of a caller's own fields.
    """

    name: str
    source: str
    fields: str
    metadata: str = "+"
    timeout_unit: str = "u"
    huffman: bool = True
    names: bool = True
    shuffled: bool = False
    windows: bool = False


_CORE = (
    "+:path {path} | +:authority {host} | +:method POST | +:scheme http | +content-type application/grpc | "
    "+te trailers | +grpc-accept-encoding identity, deflate, gzip | +grpc-timeout {timeout} | +user-agent {agent}"
)


def _core(name: str, source: str, agent: str) -> GrpcClient:
    fields = _CORE.replace("{agent}", agent)
    return GrpcClient(name, source, fields, "-", "m", huffman=False, names=False, windows=True)


GRPC_CLIENTS = (
    _core(
        "tritonclient.grpc",
        "recorded: tritonclient 2.73.0, grpcio 1.85.3",
        "grpc-python/1.85.3 grpc-c/58.0.0 (linux; chttp2)",
    ),
    _core(
        "tritonclient.grpc.aio",
        "recorded: tritonclient 2.73.0, grpcio 1.85.3",
        "grpc-python-asyncio/1.85.3 grpc-c/58.0.0 (linux; chttp2)",
    ),
    _core(
        "perf_analyzer",
        "recorded: perf_analyzer of tritonclient 2.48.0's wheel",
        "grpc-c++/1.54.3 grpc-c/31.0.0 (linux; chttp2)",
    ),
    GrpcClient(
        "grpc-go",
        "written down: grpc/grpc-go, internal/transport/http2_client.go; golang/net, http2/hpack/encode.go",
        "+:method POST | +:scheme http | +:path {path} | +:authority {host} | +content-type application/grpc | "
        "+user-agent grpc-go/1.76.0 | +te trailers | +grpc-timeout {timeout}",
    ),
    GrpcClient(
        "grpc-java",
        "written down: grpc/grpc-java, netty/GrpcHttp2OutboundHeaders.java; netty/netty, HpackEncoder.java",
        "+:authority {host} | +:path {path} | +:method POST | +:scheme http | +content-type application/grpc | "
        "+te trailers | +user-agent grpc-java-netty/1.76.0 | +grpc-accept-encoding gzip | +grpc-timeout {timeout}",
        huffman=False,
    ),
    GrpcClient(
        "grpc-js",
        "recorded: @grpc/grpc-js 1.14.7, node 20.20.2, which encodes with nghttp2",
        "+:authority {host} | +:method POST | -:path {path} | +:scheme http | "
        "+grpc-accept-encoding identity,deflate,gzip | +accept-encoding identity | +grpc-timeout {timeout} | "
        "+user-agent grpc-node-js/1.14.7 | +content-type application/grpc | +te trailers",
        timeout_unit="m",
    ),
    GrpcClient(
        "connect-go",
        "written down: connectrpc/connect-go, protocol_grpc.go; golang/net, http2/transport.go: fields from a map",
        "+:authority {host} | +:method POST | +:path {path} | +:scheme http | +content-type application/grpc | "
        "+user-agent grpc-go-connect/1.19.1 (go1.25.4) | +te trailers | +grpc-accept-encoding gzip | "
        "+accept-encoding identity | +grpc-timeout {timeout}",
        shuffled=True,
    ),
)

H2LOAD = GrpcClient(
    "h2load",
    "h2load of nghttp2 1.52.0, written down from the way overhead.py starts it",
    "+:scheme http | +:method POST | -:path {path} | +:authority {host} | +user-agent h2load nghttp2/1.52.0 | "
    "+content-type application/grpc | +te trailers",
)
