"""Reads a page: python client.py [--url HOST:PORT] [PICTURE]. Without a picture it draws one."""

import argparse
import io
from pathlib import Path

import numpy as np
import tritonclient.http as http
from PIL import Image, ImageDraw, ImageFont

LINES = [
    "Every model of this page",
    "is called by another model:",
    "detector, orientation, reader.",
    "Printed on 22 November 2026",
]


def draw(lines: list[str], upside_down: int | None = None) -> bytes:
    """A JPEG of lines of text, the one with the number `upside_down` turned by 180 degrees."""
    font = ImageFont.load_default(36)
    width = max(640, 48 + round(max(font.getlength(line) for line in lines)))
    page = Image.new("RGB", (width, 80 * len(lines)), "white")
    for number, line in enumerate(lines):
        strip = Image.new("RGB", (width, 80), "white")
        ImageDraw.Draw(strip).text((24, 18), line, "black", font)
        page.paste(strip.rotate(180 if number == upside_down else 0), (0, 80 * number))
    file = io.BytesIO()
    page.save(file, "JPEG", quality=90)
    return file.getvalue()


def read(client: http.InferenceServerClient, picture: bytes) -> list[tuple[str, float]]:
    """The lines of a page from top to bottom, and how sure the recogniser is of each."""
    file = http.InferInput("file", [1], "BYTES")
    file.set_data_from_numpy(np.array([picture], np.object_))
    result = client.infer("ocr", [file])
    return [
        (text.decode(), float(confidence))
        for text, confidence in zip(result.as_numpy("text"), result.as_numpy("confidence"), strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000")
    parser.add_argument("picture", nargs="?", type=Path)
    arguments = parser.parse_args()
    picture = arguments.picture.read_bytes() if arguments.picture else draw(LINES, upside_down=1)
    for text, confidence in read(http.InferenceServerClient(arguments.url), picture):
        print(f"{confidence:4.0%} {text}")


if __name__ == "__main__":
    main()
