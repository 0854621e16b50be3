"""Watches a thermometer with a fault, and another one beside it: python client.py [--url HOST:PORT]"""

import argparse
import math

import numpy as np
import tritonclient.grpc as grpc

UNUSUAL = 4.0
"""Standard deviations."""


class Series:
    """One sequence of requests, whose state the server keeps."""

    def __init__(self, client: grpc.InferenceServerClient, number: int) -> None:
        self.client = client
        self.number = number
        self.started = False

    def send(self, *values: float, end: bool = False) -> grpc.InferResult:
        tensor = grpc.InferInput("value", [1, len(values)], "FP64").set_data_from_numpy(np.array([values]))
        start, self.started = not self.started, not end
        return self.client.infer(
            "running_statistics", [tensor], sequence_id=self.number, sequence_start=start, sequence_end=end
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8001")
    client = grpc.InferenceServerClient(parser.parse_args().url)
    faulty, sound = Series(client, 1), Series(client, 2)
    for minute in range(60):
        temperature = 20 + math.sin(minute / 3)
        for name, series, value in (
            ("faulty", faulty, 31.0 if minute == 45 else temperature),
            ("sound", sound, temperature),
        ):
            result = series.send(value, end=minute == 59)
            (score,) = result.as_numpy("score")[0]
            if abs(score) > UNUSUAL:
                print(f"minute {minute}: the {name} thermometer shows {value:.1f}, {score:+.1f} standard deviations")
    print(f"{result.as_numpy('count').item()} values, mean {result.as_numpy('mean').item():.2f}")


if __name__ == "__main__":
    main()
