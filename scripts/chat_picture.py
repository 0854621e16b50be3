"""The terminal of ``modserve chat`` in the tutorial: a real model answers.

    python scripts/chat_picture.py smol.gguf

draws docs/readme/chat.svg anew. The file is SmolLM2-135M, as in docs/tutorials/chat-on-a-laptop.md.
"""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import terminal

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "readme" / "chat.svg"
COMMAND = "modserve chat ./smol.gguf --temperature 0 --max-tokens 60 --verbose"
LINES = ("What is the capital of France?", "And of Italy?", "/exit")
_PROMPT = "> "


def main() -> None:
    with TemporaryDirectory() as folder:
        (Path(folder) / "smol.gguf").symlink_to(Path(sys.argv[1]).absolute())
        master, slave = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
        words = [sys.executable, "-m", *COMMAND.split()]
        process = subprocess.Popen(words, cwd=folder, stdin=slave, stdout=slave, stderr=slave, env=environment)
        os.close(slave)
        screen = ""
        for line in LINES:
            screen += _until_prompt(master)
            os.write(master, f"{line}\n".encode())
        process.wait()
    PICTURE.write_text(
        terminal.draw("A chat with a model of 135 million parameters", [(COMMAND, _shown(screen).rstrip())]), "utf-8"
    )


def _until_prompt(master: int) -> str:
    text = "\n"
    while not terminal.plain(_shown(text)).endswith(f"\n{_PROMPT}"):
        text += os.read(master, 1 << 16).decode(errors="replace")
    return text[1:]


def _shown(text: str) -> str:
    """Without what moves the cursor or sets the terminal's modes."""
    return re.sub(r"\r|\x1b\[[0-9;?]*[A-Za-ln-z]", "", text)


if __name__ == "__main__":
    main()
