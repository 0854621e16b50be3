"""Texts in, texts and vectors out: what the server costs beside the engines. ``python benchmarks/text.py embeddings``

``embeddings``: OpenAI's ``/v1/embeddings`` over all-MiniLM-L6-v2, beside ONNX Runtime called bare.
``overhead``: what ``/v1/embeddings`` costs over a tensor call of the same model.
``chat``: what ``/v1/chat/completions`` costs over a tensor call of the same model.
``chat-engine``: streams of a small language model, beside OpenVINO GenAI called bare. Needs the extra ``genai``.
``vllm``: the same streams on vLLM, in our server and in its own. Needs the extra ``genai``, and scripts/vllm.
``idle``: the memory of streams on which nothing happens.
"""

import argparse

import text_chat
import text_embeddings
import text_idle
import text_overhead


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    embeddings = parts.add_parser("embeddings")
    plan = text_embeddings.Plan()
    embeddings.add_argument("--clients", type=int, default=plan.clients)
    embeddings.add_argument("--rounds", type=int, default=plan.rounds)
    embeddings.add_argument("--window", type=float, default=plan.window, help="seconds")
    embeddings.add_argument("--settle", type=float, default=plan.settle, help="seconds under load before that")
    embeddings.add_argument("--port", type=int, default=plan.port, help="of another server; its CPU is not measured")
    embeddings.add_argument("--model", default=plan.model, help="as that server calls it")
    chats, idles = text_chat.Plan(), text_idle.Plan()
    for name in ("chat", "overhead"):
        calls = parts.add_parser(name)
        calls.add_argument("--rounds", type=int, default=chats.rounds)
        calls.add_argument("--requests", type=int, default=chats.requests, help="of each call in a round")
    idle = parts.add_parser("idle")
    idle.add_argument("--streams", type=int, default=idles.streams)
    idle.add_argument("--rounds", type=int, default=idles.rounds)
    for name, outputs, streams in (("chat-engine", 3, (1, 8, 32)), ("vllm", 1, (1, 8))):
        engine = parts.add_parser(name)
        engine.add_argument("--rounds", type=int, default=3)
        engine.add_argument("--outputs", type=int, default=outputs, help="of each stream in a round")
        engine.add_argument("--streams", type=lambda text: tuple(map(int, text.split(","))), default=streams)
    arguments = vars(parser.parse_args())
    part = arguments.pop("part")
    if part == "chat":
        print(text_chat.report(text_chat.Plan(**arguments)))
    elif part == "overhead":
        print(text_overhead.report(text_chat.Plan(**arguments)))
    elif part == "chat-engine":
        import text_generation  # the only one that imports the engine

        print(text_generation.report(text_generation.Plan(**arguments)))
    elif part == "vllm":
        import text_vllm

        print(text_vllm.report(text_vllm.Plan(**arguments)))
    elif part == "idle":
        print(text_idle.report(text_idle.Plan(**arguments)))
    else:
        print(text_embeddings.report(text_embeddings.Plan(**arguments)))


if __name__ == "__main__":
    main()
