"""When does somebody speak? python client.py [--url HOST:PORT] [WAV]. Without a file it makes one, speech.wav."""

import argparse
import wave
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import tritonclient.grpc as grpc
from numpy.typing import NDArray

RATE, CHUNK = 16000, 512
"""Samples in a second and in a request: 32 ms."""
BEGINS, ENDS = 0.5, 0.3
"""Speech begins at the one probability, and is over when it has been below the other one for `PAUSE` chunks."""
PAUSE, SHORTEST = 6, 8

VOWELS = [(730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480), (570, 840, 2410)]
"""The resonances of a, i, u, e and o in Hz."""

Samples = NDArray[np.float32]


def voice(seconds: float, pitch: float, seed: int = 0) -> Samples:
    """Somebody babbles: vowels and hisses, FP32 [samples] from -1 to 1, of a voice of about `pitch` Hz."""
    source = np.random.default_rng(seed)
    sounds = []
    while sum(map(len, sounds)) < seconds * RATE:
        hiss = source.standard_normal(source.integers(600, 1500))
        vowel = _vowel(VOWELS[source.integers(len(VOWELS))], pitch * source.uniform(0.85, 1.15), source)
        sounds += [0.05 * np.diff(hiss, append=0) * np.hanning(len(hiss)), vowel, np.zeros(source.integers(600))]
    samples: Samples = (0.3 * np.concatenate(sounds)).astype(np.float32)
    return samples[: round(seconds * RATE)]


def _vowel(resonances: tuple[int, ...], pitch: float, source: np.random.Generator) -> NDArray[np.float64]:
    """Harmonics of a pitch that falls and rises, each as loud as the resonances make it."""
    time = np.arange(source.integers(2000, 4000)) / RATE
    phase = 2 * np.pi * pitch * (time + 0.02 * np.sin(2 * np.pi * 3 * time + source.uniform(0, 6)))
    harmonics = np.arange(1, int(4000 / pitch))
    loudness = sum(1 / (1 + ((harmonics * pitch - resonance) / 80) ** 2) for resonance in resonances) / harmonics**0.5
    sound = (loudness[:, None] * np.sin(harmonics[:, None] * phase)).sum(axis=0)
    edges = np.minimum(np.arange(len(time)), np.arange(len(time))[::-1]) / (0.02 * RATE)
    loud: NDArray[np.float64] = sound / np.abs(sound).max() * np.minimum(edges, 1)
    return loud


def room(seconds: float, seed: int = 0) -> Samples:
    """Nobody speaks: a little noise."""
    noise = np.random.default_rng(seed).standard_normal(round(seconds * RATE))
    return (0.002 * noise).astype(np.float32)


def conversation() -> Samples:
    """A man speaks for two seconds, and, after a pause, a woman for one and a half."""
    return np.concatenate([room(1), voice(2, 120), room(1.2), voice(1.5, 210), room(0.8)])


def write_wav(path: Path, samples: Samples) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((samples * 32767).astype("<i2").tobytes())


def read_wav(path: Path) -> Samples:
    with wave.open(str(path), "rb") as file:
        if (file.getnchannels(), file.getsampwidth(), file.getframerate()) != (1, 2, RATE):
            raise SystemExit(f"{path}: expected one channel of 16 bits at {RATE} Hz")
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768


class Stream:
    """One sequence of requests: what the network remembers of a stream is kept by the server."""

    def __init__(self, client: grpc.InferenceServerClient, number: int) -> None:
        self.client = client
        self.number = number
        self.started = False

    def probability(self, chunk: Samples, end: bool = False) -> float:
        """That somebody speaks in the next `CHUNK` samples of the stream."""
        audio = grpc.InferInput("audio", [1, CHUNK], "FP32").set_data_from_numpy(chunk[None])
        start, self.started = not self.started, not end
        result = self.client.infer(
            "speech_detection", [audio], sequence_id=self.number, sequence_start=start, sequence_end=end
        )
        return float(result.as_numpy("speech").item())


def probabilities(client: grpc.InferenceServerClient, samples: Samples, number: int = 1) -> list[float]:
    """One for each chunk, the last one filled up with silence."""
    chunks = np.pad(samples, (0, -len(samples) % CHUNK)).reshape(-1, CHUNK)
    stream = Stream(client, number)
    return [stream.probability(chunk, end=index == len(chunks) - 1) for index, chunk in enumerate(chunks)]


def segments(speech: Iterable[float]) -> Iterator[tuple[float, float]]:
    """From when to when somebody speaks, in seconds."""
    begin, last, index = None, 0, -1
    for index, probability in enumerate(speech):
        if probability >= BEGINS and begin is None:
            begin = index
        if probability >= ENDS:
            last = index
        elif begin is not None and index - last >= PAUSE:
            if last + 1 - begin >= SHORTEST:
                yield begin * CHUNK / RATE, (last + 1) * CHUNK / RATE
            begin = None
    if begin is not None and last + 1 - begin >= SHORTEST:
        yield begin * CHUNK / RATE, (last + 1) * CHUNK / RATE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8001")
    parser.add_argument("wav", nargs="?", type=Path)
    arguments = parser.parse_args()
    path = arguments.wav
    if path is None:
        path = Path("speech.wav")
        write_wav(path, conversation())
    samples = read_wav(path)
    print(f"{path.name}: {len(samples) / RATE:.1f} s")
    for start, end in segments(probabilities(grpc.InferenceServerClient(arguments.url), samples)):
        print(f"speech from {start:.2f} s to {end:.2f} s")


if __name__ == "__main__":
    main()
