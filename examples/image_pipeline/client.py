"""What do pictures show? python client.py [--url HOST:PORT] PICTURE ..."""

import argparse
from pathlib import Path

import numpy as np
import tritonclient.http as http


def classify(client: http.InferenceServerClient, pictures: list[bytes]) -> list[list[tuple[str, float]]]:
    """For each picture (a JPEG or PNG file), five labels and their probabilities, the best first."""
    file = http.InferInput("file", [len(pictures), 1], "BYTES")
    file.set_data_from_numpy(np.array([[picture] for picture in pictures], np.object_))
    result = client.infer("image_pipeline", [file])
    return [
        [(label.decode(), float(probability)) for label, probability in zip(*row, strict=True)]
        for row in zip(result.as_numpy("label"), result.as_numpy("probability"), strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000")
    parser.add_argument("pictures", nargs="+", type=Path)
    arguments = parser.parse_args()
    pictures = [path.read_bytes() for path in arguments.pictures]
    classes = classify(http.InferenceServerClient(arguments.url), pictures)
    for path, labels in zip(arguments.pictures, classes, strict=True):
        print(path.name, ", ".join(f"{label} {probability:.0%}" for label, probability in labels))


if __name__ == "__main__":
    main()
