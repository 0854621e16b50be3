"""Which of some sentences mean the same? python client.py [--url HOST:PORT] [SENTENCE ...]"""

import argparse

import numpy as np
import tritonclient.http as http
from numpy.typing import NDArray

SENTENCES = [
    "A man is playing a guitar.",
    "Someone strums an instrument.",
    "The stock market fell sharply today.",
    "Share prices dropped this afternoon.",
]


def embed(client: http.InferenceServerClient, sentences: list[str]) -> NDArray[np.float32]:
    """FP32 [sentences, 384], each row of length 1."""
    text = http.InferInput("text", [len(sentences), 1], "BYTES")
    text.set_data_from_numpy(np.array([[sentence.encode()] for sentence in sentences], np.object_))
    embeddings: NDArray[np.float32] = client.infer("text_embeddings", [text]).as_numpy("embedding")
    return embeddings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000")
    parser.add_argument("sentences", nargs="*", default=SENTENCES)
    arguments = parser.parse_args()
    embeddings = embed(http.InferenceServerClient(arguments.url), arguments.sentences)
    for sentence, similarities in zip(arguments.sentences, embeddings @ embeddings.T, strict=True):
        print(" ".join(f"{similarity:5.2f}" for similarity in similarities), sentence)


if __name__ == "__main__":
    main()
