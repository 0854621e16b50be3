"""The Python shown in the documentation does what is said of it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docs_site
import numpy as np
import option_tables
import pytest

from modserve import InferenceServer, Settings
from modserve.settings import OPTIONS, from_command_line
from modserve.testing import FakeDevice, write_model

ROOT = Path(__file__).parents[2]

DOUBLE = """
backend: "double"
max_batch_size: 4
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""


def python_blocks(path: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / path).read_text("utf-8"), re.MULTILINE | re.DOTALL)


COUNTING = """
backend: "counting"
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
model_transaction_policy { decoupled: true }
"""


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """All that the page on backends defines, block by block, each after the ones before it."""
    defined: dict[str, Any] = {}
    for block in python_blocks("docs/backends.md"):
        exec(block, defined)
    return defined


def backend(names: dict[str, Any], model: Any) -> Any:
    """The page's backend, with models that `model` makes of their source."""
    return type("Backend", (names["DoubleBackend"],), {"open": lambda self, source: model(source)})()


def model_of(names: dict[str, Any], instance: str) -> Any:
    """The page's model, with instances of another of its classes."""
    made = type("Model", (names["DoubleModel"],), {"instance": lambda self, spec: names[instance]()})
    return lambda source: made()


async def double(server: InferenceServer, model: str, value: float) -> list[list[float]]:
    response = await server.infer(model, {"INPUT": np.array([[value, value + 1]], np.float32)})
    doubled: list[list[float]] = response.outputs["OUTPUT"].array.tolist()
    return doubled


async def test_the_backend_of_the_page_on_backends(names: dict[str, Any], tmp_path: Path) -> None:
    write_model(tmp_path, "double", DOUBLE)
    settings = Settings(model_repository=(tmp_path,))
    async with InferenceServer(settings, backends={"double": names["DoubleBackend"]()}) as server:
        assert await double(server, "double", 1) == [[2.0, 4.0]]


def test_the_output_of_the_page_that_stays_on_a_device(names: dict[str, Any]) -> None:
    device = FakeDevice()
    there = device.upload(np.ones(3, np.float32))
    tensor = names["left_there"](there, there.download)
    assert (tensor.source, device.downloads) == (there, 0)
    assert (tensor.array.tolist(), device.downloads) == ([1, 1, 1], 1)


async def test_the_engine_of_the_page_that_responds_by_request(names: dict[str, Any], tmp_path: Path) -> None:
    write_model(tmp_path, "counting", COUNTING)
    settings = Settings(model_repository=(tmp_path,))
    engine = backend(names, model_of(names, "CountingInstance"))
    async with InferenceServer(settings, backends={"counting": engine}) as server:
        inputs = {"INPUT": np.zeros(2, np.float32)}
        responses = [each async for each in server.infer_stream("counting", inputs, parameters={"count": 2})]
    assert [each.outputs["OUTPUT"].array.tolist() for each in responses] == [[0], [1]]
    assert [each.parameters for each in responses] == [{"of": "three"}] * 2


def anchors(path: Path) -> set[str]:
    """What may stand behind the # of a link to a page, as GitHub makes it of its headings."""
    names: list[str] = []
    for line, is_code in docs_site.lines(path.read_text("utf-8")):
        if not is_code and (heading := re.match(r"#+ (.*)", line)):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).replace("`", "")
            name = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
            names.append(f"{name}-{names.count(name)}" if name in names else name)
    return {*names, *re.findall(r'<a id="([^"]+)">', path.read_text("utf-8"))}


def test_every_link_leads_somewhere() -> None:
    pages = [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
        *(ROOT / "benchmarks").rglob("*.md"),
    ]
    broken = []
    for page in pages:
        for line, is_code in docs_site.lines(page.read_text("utf-8")):
            for address, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", "" if is_code else line):
                target = (page.parent / address).resolve() if address else page
                if "://" in address:
                    continue
                if not target.exists() or (anchor and anchor not in anchors(target)):
                    broken.append(f"{page.relative_to(ROOT)}: {address}#{anchor}")
    assert len(pages) > 40
    assert broken == []


def texts(tree: ast.AST) -> Iterator[str]:
    """The texts of a module, with a zero for each part that is put in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"%[sd]", "\0", node.value)
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values)


def test_every_message_of_the_page_on_troubleshooting_is_one() -> None:
    """Its fixed parts, at least; a message may be put together of several texts."""
    messages = re.findall(r"^\*\*`(.+)`\*\*$", (ROOT / "docs" / "troubleshooting.md").read_text("utf-8"), re.MULTILINE)
    modules = [ast.parse(path.read_text("utf-8")) for path in (ROOT / "src").rglob("*.py") if path.parent.name != "pb"]
    said = "\n".join(text for module in modules for text in texts(module))
    parts = {part.strip() for message in messages for part in re.split("…", message) if len(part.strip()) > 5}
    assert len(messages) > 20
    assert sorted(part for part in parts if part not in said) == []


def test_the_tables_say_what_the_source_says() -> None:
    for file in option_tables.PAGES:
        page = file.read_text("utf-8")
        assert option_tables.END in page
        assert option_tables.renewed(page) == page, "python scripts/option_tables.py writes the tables anew"


def test_the_page_on_options_has_each_once() -> None:
    """Also those that HTTP and gRPC share, and other names, which are in one item."""
    names = [line.partition(": ")[0] for line in option_tables.options().splitlines() if "`--" in line]
    assert sorted(re.findall(r"--([\w-]+)", " ".join(names))) == sorted(OPTIONS)


def test_the_option_file_of_the_page_on_options(tmp_path: Path) -> None:
    (shown,) = re.findall(
        r"^```yaml\n(model-repository.*?)^```", option_tables.PAGE.read_text("utf-8"), re.M | re.DOTALL
    )
    file = tmp_path / "modserve.yaml"
    file.write_text(shown, "utf-8")
    settings = from_command_line(["--config", str(file)], {}).settings
    assert settings.repositories == (Path("/models"), Path("/more-models"))
    assert settings.backend_config == {"onnxruntime": {"default-max-batch-size": "4"}}
    assert (settings.http.port, *settings.trace_level, settings.trace_file) == (8000, "TIMESTAMPS", "trace.json")


async def test_the_engine_of_the_page_that_calls_another_model(names: dict[str, Any], tmp_path: Path) -> None:
    write_model(tmp_path, "double", DOUBLE)
    write_model(tmp_path, "quadruple", DOUBLE.replace("double", "quadruple"))
    settings = Settings(model_repository=(tmp_path,))
    engines = {"double": names["DoubleBackend"](), "quadruple": backend(names, names["QuadrupleModel"])}
    async with InferenceServer(settings, backends=engines) as server:
        assert await double(server, "quadruple", 1) == [[4.0, 8.0]]
