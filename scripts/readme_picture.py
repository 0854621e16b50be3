"""The terminal on the front page: a server is started with the example models, and called.

    python scripts/readme_picture.py

draws docs/readme/terminal.svg anew. tests/e2e/test_every_page.py does what it shows.
"""

import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.error import URLError
from urllib.request import urlopen

import terminal

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "readme" / "terminal.svg"
PROGRAM = """import modserve


@modserve.model
def shout(text: str) -> str:
    return text.upper()
"""
SHOW = "cat shout.py"
SERVE = "modserve serve shout.py:shout --model-repository models"
CALL = 'curl localhost:8000/v2/models/shout/generate -d \'{"text": "hello"}\''


def main() -> None:
    with TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "models").symlink_to(ROOT / "model_repository")
        (place / "shout.py").write_text(PROGRAM, "utf-8")
        steps = [(SHOW, _run(place, SHOW))]
        with (place / "printed").open("w+", encoding="utf-8") as printed:
            words = [sys.executable, "-m", *SERVE.split()]
            server = subprocess.Popen(words, cwd=place, stdout=printed, stderr=subprocess.DEVNULL)
            try:
                _wait()
                response = _run(place, CALL)
                printed.seek(0)
                table = printed.read().partition("\nTry it:")[0]
            finally:
                server.terminate()
                server.wait()
    steps += [(SERVE, table), (CALL, response + "\n")]
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(terminal.draw("modserve is started, and called", steps), "utf-8")


def _run(place: Path, command: str) -> str:
    return subprocess.run(["sh", "-c", command], cwd=place, capture_output=True, text=True, check=True).stdout


def _wait() -> None:
    for _ in range(300):
        try:
            urlopen("http://localhost:8000/v2/health/ready").close()
            return
        except URLError:
            time.sleep(0.1)
    raise SystemExit("the server is not ready after 30 s; is its port in use?")


if __name__ == "__main__":
    main()
