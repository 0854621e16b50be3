"""How far is it, and which city is near? python client.py [--url HOST:PORT]"""

import argparse

import numpy as np
import tritonclient.http as http
from numpy.typing import NDArray

MONT_BLANC, KILIMANJARO = (45.83, 6.86), (-3.07, 37.35)


def call(client: http.InferenceServerClient, model: str, **places: list[tuple[float, float]]) -> http.InferResult:
    inputs = []
    for name, rows in places.items():
        values: NDArray[np.float64] = np.array(rows, np.float64)
        inputs.append(http.InferInput(name, list(values.shape), "FP64").set_data_from_numpy(values))
    return client.infer(model, inputs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000")
    client = http.InferenceServerClient(parser.parse_args().url)
    result = call(client, "distance", start=[MONT_BLANC], end=[KILIMANJARO])
    print(f"Mont Blanc to Kilimanjaro: {result.as_numpy('output').item():.0f} km")
    result = call(client, "nearest", place=[MONT_BLANC, KILIMANJARO])
    for city, distance in zip(result.as_numpy("name").ravel(), result.as_numpy("distance").ravel(), strict=True):
        print(f"{city.decode()} is {distance:.0f} km away")


if __name__ == "__main__":
    main()
