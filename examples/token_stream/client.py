"""Tells a story over a gRPC stream: python client.py [--url HOST:PORT] [--max-tokens N] [--seed N] [PROMPT]"""

import argparse
import queue
from collections.abc import Iterator

import numpy as np
import tritonclient.grpc as grpc


def stream(client: grpc.InferenceServerClient, prompt: str, **options: int) -> Iterator[str]:
    """The tokens as they come; `options` are `max_tokens` and `seed`. Leaving the loop early cancels the request."""
    tensors = [grpc.InferInput("prompt", [1], "BYTES").set_data_from_numpy(np.array([prompt.encode()], np.object_))]
    for name, datatype in (("max_tokens", "INT32"), ("seed", "INT64")):
        if name in options:
            values = np.array([options[name]], np.dtype(datatype.lower()))
            tensors.append(grpc.InferInput(name, [1], datatype).set_data_from_numpy(values))
    responses: queue.Queue[tuple[grpc.InferResult, Exception | None]] = queue.Queue()
    client.start_stream(callback=lambda result, error: responses.put((result, error)))
    finished = False
    try:
        client.async_stream_infer("storyteller", tensors, enable_empty_final_response=True)
        while not finished:
            result, error = responses.get()
            if error:
                raise error
            finished = result.get_response().parameters["triton_final_response"].bool_param
            if result.get_response().outputs:
                yield result.as_numpy("token")[0].decode()
    finally:
        client.stop_stream(cancel_requests=not finished)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8001")
    parser.add_argument("--max-tokens", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("prompt", nargs="?", default="The old woman")
    arguments = parser.parse_args()
    print(arguments.prompt, end="", flush=True)
    client = grpc.InferenceServerClient(arguments.url)
    for token in stream(client, arguments.prompt, max_tokens=arguments.max_tokens, seed=arguments.seed):
        print(token, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
