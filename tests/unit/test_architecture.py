"""The import rules of the design, checked in the source text: which package may import which, and what from outside."""

import ast
import functools
import sys
from dataclasses import dataclass
from graphlib import TopologicalSorter

import figures
import pytest
import source_modules
from source_modules import SOURCE, chains, circles, import_graph, imports_of

TEXTS = source_modules.texts()
EVERYTHING = frozenset(
    path.stem for path in SOURCE.iterdir() if (path.is_dir() and path.name != "__pycache__") or path.suffix == ".py"
)
ANYWHERE = {"__about__"}
"""The version number, which everybody may read."""


@dataclass(frozen=True)
class Rule:
    """What a package may import: other packages or single modules of ours, and distributions' top-level packages."""

    ours: frozenset[str]
    foreign: frozenset[str] = frozenset()


def rule(ours: str = "", foreign: str = "") -> Rule:
    return Rule(frozenset(ours.split()), frozenset(foreign.split()))


LIBRARY = {"client", "library", "ray"}
"""For programs that use modserve as a library: no server needs it."""

RULES = {
    "core": rule(),
    "core.files": rule("core.errors"),
    "core.runtime": rule(foreign="numpy uvloop"),
    "core.runtime.background": rule("core.errors core.runtime"),
    "core.wire": rule("core.runtime", "numpy"),
    "core.tensors": rule("core.errors core.files core.runtime core.wire", "ml_dtypes numpy"),
    "core.configuration": rule("core.errors core.files core.residency core.tensors core.version", "numpy"),
    "core.requests": rule(
        "core.configuration core.errors core.tenants core.tensors core.version", "mypy_extensions numpy"
    ),
    "core.statistics": rule("core.errors core.requests", "mypy_extensions"),
    "core.servable": rule("core.configuration core.requests core.residency core.statistics core.version"),
    "core.recording": rule("core.requests core.servable"),
    "core.loading": rule("core.errors core.files core.servable core.version"),
    "pb": rule(foreign="google.protobuf"),
    "config": rule("core pb routing", "google.protobuf"),
    "access": rule("core protocol.restricted", "jwt yaml"),
    "protocol": rule("core pb", "google.protobuf numpy orjson"),
    "settings": rule("core protocol.restricted", "pydantic yaml"),
    "backends": rule(
        "core",
        "numpy google.protobuf yaml onnx onnxruntime openvino openvino_genai torch tensorflow treelite sklearn "
        "skops joblib threadpoolctl pandas mlflow msgspec PIL transformers triton_python_backend_utils vllm",
    ),
    "resources": rule("core", "mypy_extensions redis"),
    "routing": rule("core", "numpy"),
    "repository": rule("core routing", "boto3 botocore obstore orjson"),
    "observability": rule("core", "mypy_extensions opentelemetry orjson"),
    "recording": rule("core"),
    "scheduling": rule("core resources", "mypy_extensions"),
    "execution": rule("core backends.api resources", "mypy_extensions numpy"),
    "models": rule(),
    "models.diagnosis": rule("core config backends.catalogue"),
    "models.residency": rule("core config scheduling"),
    "models.serving": rule("core resources config backends.api execution scheduling"),
    "models.loading": rule(
        "core resources config backends.api backends.batch_trial backends.code backends.registry execution scheduling "
        "models.diagnosis models.residency models.serving"
    ),
    "server": rule("core observability pb resources routing"),
    "server.member": rule("core routing server.local"),
    "server.scoped": rule("access core observability pb routing server"),
    "server.in_process": rule("core resources"),
    "server.local": rule("core observability pb protocol.control repository resources server server.in_process"),
    "text": rule("core", "jinja2 numpy orjson tokenizers"),
    "frontends": rule(
        "access core protocol server pb settings text observability.access_log observability.audit_log",
        "fastapi google.protobuf hpack httptools mypy_extensions orjson pydantic starlette",
    ),
    "frontends.http.console.peers": rule("client core server"),
    "process": rule(),
    "process.app": Rule(
        EVERYTHING - {"cli", "commands", "process", "testing", "__init__", "__main__"} - LIBRARY
        | {"process.listeners", "process.model_setup", "process.ports", "process.record_setup"}
    ),
    "process.console": rule("backends.inventory core observability.logging protocol.examples"),
    "process.listeners": rule(
        "access core frontends observability process.load_reporter process.metrics_page process.ports resources server "
        "settings workers"
    ),
    "process.load_reporter": rule("core execution.placement observability resources server"),
    "process.metrics_page": rule("backends.inventory core form observability server settings"),
    "process.model_setup": rule("backends.python.functions backends.registry config core models repository settings"),
    "process.record_setup": rule("__about__ core recording settings workers.identity"),
    "process.ports": rule("core resources.posix"),
    "process.port_conflict": rule("process.ports"),
    "process.reserved_ports": rule("core process.ports settings"),
    "process.child_process": rule(),
    "process.supervisor": rule("core observability process.child_process workers.identity"),
    "client": rule("core pb protocol server", "google.protobuf grpc numpy orjson"),
    "library": rule(),
    "library.connecting": rule("client core process.app settings"),
    "library.mounting": rule(
        "client core frontends library.connecting observability.audit_log process.app process.listeners server settings"
    ),
    "ray": rule(
        "access core frontends models.serving.wrappers observability pb process.app process.listeners "
        "process.metrics_page routing server settings workers",
        "grpc pydantic ray",
    ),
    "workers": rule("core pb protocol server frontends models routing settings observability"),
    "commands": rule(
        "access backends client config core execution form server.in_process models observability pb process.console "
        "process.model_setup process.ports protocol ray.application recording repository resources settings "
        "text.description",
        "google.protobuf grpc hpack ml_dtypes numpy onnxruntime orjson PIL pynvml ray rich shtab uvloop",
    ),
    "cli": rule(
        "commands core form observability process.app process.console process.listeners process.model_setup "
        "process.port_conflict process.ports process.reserved_ports process.supervisor settings workers",
    ),
    "testing": Rule(EVERYTHING - {"__init__", "__main__"}, frozenset({"numpy", "pytest"})),
    "__init__": rule("backends client core library process.app process.listeners settings"),
    "__main__": rule("cli"),
    "__about__": rule(),
    "form": rule(),
}
"""By package, or by what is inside one: of the names that a module is in, the longest has its rule."""


def unit(module: str) -> str:
    """The package or module whose rule holds for a module, or for what is taken from one; empty if there is none."""
    while module and module not in RULES:
        module = module.rpartition(".")[0]
    return module


def within(name: str, allowed: str) -> bool:
    return name == allowed or name.startswith(f"{allowed}.")


def violations(module: str, text: str, is_package: bool = False) -> list[str]:
    """What a module imports against the rules of its package."""
    own = unit(module)
    allowed = RULES[own]
    found = []
    for name in imports_of(module, text, is_package):
        if within(name, "modserve"):
            inner = name.removeprefix("modserve").removeprefix(".")
            fine = unit(inner) == own or any(within(inner, each) for each in {*ANYWHERE, *allowed.ours})
        else:
            top = name.split(".")[0]
            fine = top in sys.stdlib_module_names or any(within(name, each) for each in allowed.foreign)
        if not fine:
            found.append(f"{module} imports {name}")
    return found


def test_every_package_has_a_rule() -> None:
    assert [name for name in TEXTS if not unit(name)] == []
    assert [name for each in RULES.values() for name in each.ours if not unit(name)] == []
    assert {unit(name) for name in TEXTS} == set(RULES), "rules for what is no longer there"


def test_imports() -> None:
    found = []
    for module, (text, is_package) in TEXTS.items():
        found += violations(module, text, is_package)
    assert found == []


@functools.cache
def unit_graph() -> dict[str, set[str]]:
    """What has a rule → what else that has one it imports in fact."""
    graph: dict[str, set[str]] = {}
    for module, (text, is_package) in TEXTS.items():
        for name in imports_of(module, text, is_package):
            if within(name, "modserve"):
                graph.setdefault(unit(module), set()).add(unit(name.removeprefix("modserve.")))
    return {own: others - {own, "", *ANYWHERE} for own, others in graph.items()}


def package_graph() -> dict[str, set[str]]:
    """Package → packages that it imports in fact."""
    graph: dict[str, set[str]] = {}
    for own, others in unit_graph().items():
        graph.setdefault(own.split(".")[0], set()).update(other.split(".")[0] for other in others)
    return {own: others - {own} for own, others in graph.items()}


def test_the_package_graph_has_no_cycles() -> None:
    graph = package_graph()
    assert graph["scheduling"] == {"core", "resources"}  # or nothing was read
    TopologicalSorter(graph).prepare()


def test_packages_inside_a_package_import_each_other_in_one_direction() -> None:
    graph = unit_graph()
    assert {"models.diagnosis", "models.serving"} <= graph["models.loading"]  # or nothing was read
    TopologicalSorter(graph).prepare()


def test_modules_import_each_other_in_one_direction() -> None:
    graph = import_graph(TEXTS)
    assert "core.errors" in graph["core.tensors.tensor"]  # or nothing was read
    assert circles(graph) == set()


def test_a_circle_is_found() -> None:
    typing_only = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a import A"
    texts = {
        "p": ("from .a import A", True),
        "p.a": ("def f():\n    from .b import B", False),
        "p.b": ("from . import c", False),
        "p.c": (typing_only, False),
        "p.d": ("from .c import C\nfrom modserve.q.e import E", False),
        "q.e": ("from modserve.p.d import D", False),
    }
    assert circles(import_graph(texts)) == {frozenset({"p.a", "p.b", "p.c"})}


KNOWN_LONG_CHAINS = {"client.errors.ClientTimeoutError"}
"""Callers catch it as a time-out, as a failed call, and as any error of modserve's."""


def test_a_class_inherits_from_at_most_one_class_of_ours() -> None:
    """And that one from none: what a class shares with others is a part of it."""
    every = chains(TEXTS)
    assert every["core.errors.OverloadedError"] == ("core.errors.OverloadedError", "core.errors.ModserveError")
    long = figures.long_chains(every)
    assert set(long) == KNOWN_LONG_CHAINS


def test_a_chain_is_followed_through_imports() -> None:
    texts = {
        "p": ("from .a import Base", True),
        "p.a": ("class Base: ...\nclass Middle(Generic[T], Base): ...", False),
        "p.b": ("from . import a\nclass Low(a.Middle[int]): ...", False),
        "p.c": (
            "from modserve.p import Base\nclass Other(Base): ...\nclass Middle: ...\nclass Own(Middle): ...",
            False,
        ),
        "q": ("from other import Base\nclass Foreign(Base): ...", False),
    }
    expected = {
        "p.a.Base": ("p.a.Base",),
        "p.a.Middle": ("p.a.Middle", "p.a.Base"),
        "p.b.Low": ("p.b.Low", "p.a.Middle", "p.a.Base"),
        "p.c.Other": ("p.c.Other", "p.a.Base"),
        "p.c.Middle": ("p.c.Middle",),
        "p.c.Own": ("p.c.Own", "p.c.Middle"),
        "q.Foreign": ("q.Foreign",),
    }
    assert chains(texts) == expected
    assert set(figures.long_chains(expected)) == {"p.b.Low"}


def test_no_file_is_long() -> None:
    assert figures.long_files() == {}


def test_only_code_is_counted() -> None:
    text = """
'A module.'

# A comment.
X = 1  # one
'What X is.'

def f():
    'A function.

    Of two paragraphs.'
    return (
        X
    )
""".replace("'", '"' * 3)
    assert figures.code_lines(text) == 5


SIMULATED = ("core", "execution", "models", "routing", "resources", "scheduling", "server")


def test_where_time_is_simulated_a_clock_is_looked_up_when_something_is_made() -> None:
    """A default value would be the clock of the machine, whatever a test has put in its place."""
    defaults = [
        f"{path.relative_to(SOURCE)}:{default.lineno}"
        for package in SIMULATED
        for path in sorted((SOURCE / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.arguments)
        for default in [*node.defaults, *filter(None, node.kw_defaults)]
        if isinstance(default, ast.Attribute) and isinstance(default.value, ast.Name) and default.value.id == "time"
    ]
    assert not defaults


def test_only_the_command_line_and_the_library_import_app() -> None:
    found = {package for package, others in unit_graph().items() if "process.app" in others}
    assert found <= {"cli", "library.connecting", "library.mounting", "ray", "testing", "__init__"}


def test_front_ends_see_only_the_interface_of_a_server() -> None:
    assert "server" in unit_graph()["frontends"]  # or nothing was read
    found = {own for own, others in unit_graph().items() if "server.local" in others}
    assert not found & {"frontends", "protocol", "server"}


def test_nothing_imports_testing() -> None:
    assert [package for package, others in package_graph().items() if "testing" in others] == []


FORBIDDEN = {
    "absolute": ("core.version", "from modserve.execution import batch", "modserve.execution.batch"),
    "absolute, whole": ("core.version", "import modserve.execution.pool", "modserve.execution.pool"),
    "relative": ("core.version", "from ..execution.batch import merge", "modserve.execution.batch.merge"),
    "relative, package": ("core.version", "from .. import server", "modserve.server"),
    "relative from above": ("server", "from . import frontends", "modserve.frontends"),
    "deeper": ("frontends.http.infer", "from ...backends import api", "modserve.backends.api"),
    "in a function": ("core.version", "def f():\n    import modserve.process.app", "modserve.process.app"),
    "in a branch": (
        "core.version",
        "if a:\n    pass\nelif b:\n    import modserve.process.app",
        "modserve.process.app",
    ),
    "in an exception's handler": (
        "core.version",
        "try:\n    pass\nexcept E:\n    import modserve.process.app",
        "modserve.process.app",
    ),
    "at last": ("core.version", "try:\n    pass\nfinally:\n    import modserve.process.app", "modserve.process.app"),
    "in a case": ("core.version", "match a:\n    case 1:\n        import modserve.process.app", "modserve.process.app"),
    "in a loop": (
        "core.version",
        "for a in b:\n    with a:\n        import modserve.process.app",
        "modserve.process.app",
    ),
    "for type checkers": (
        "scheduling.queue",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from modserve.models.serving.model import Model",
        "modserve.models.serving.model.Model",
    ),
    "another module of a package": (
        "execution.pool",
        "from modserve.backends.registry import BackendRegistry",
        "modserve.backends.registry.BackendRegistry",
    ),
    "a whole package for one module": ("execution.pool", "import modserve.backends", "modserve.backends"),
    "another package inside a package": (
        "models.serving.model",
        "from ..loading.loader import Loader",
        "modserve.models.loading.loader.Loader",
    ),
    "the package above": ("models.serving.model", "from .. import x", "modserve.models.x"),
    "the package itself": ("core.version", "from modserve import Tensor", "modserve.Tensor"),
    "foreign": ("core.version", "import onnxruntime as ort", "onnxruntime"),
    "foreign namespace": ("pb.inference", "from google.cloud import storage", "google.cloud.storage"),
    "likely named": ("models.loading.loader", "import modserve.backends.api_extra", "modserve.backends.api_extra"),
    "app": ("frontends.metrics", "from modserve.process.app import serve", "modserve.process.app.serve"),
    "testing": ("models.serving.model", "from modserve.testing import FakeClock", "modserve.testing.FakeClock"),
}


@pytest.mark.parametrize("case", FORBIDDEN)
def test_a_forbidden_import_is_found(case: str) -> None:
    module, text, imported = FORBIDDEN[case]
    assert violations(module, text) == [f"{module} imports {imported}"]


@pytest.mark.parametrize(
    ("module", "text", "is_package"),
    [
        (
            "core.tensors.tensor",
            "import math, os.path\nimport numpy as np\nfrom . import dtypes\nfrom ..errors import x",
            False,
        ),
        ("execution.pool", "from modserve.backends.api import BackendInstance", False),
        ("models.loading.loader", "from modserve import config as model_config", False),
        ("server", "from .core.errors import Code\nfrom .__about__ import __version__", False),
        ("config", "from .pbtxt import read\nfrom . import defaults\nfrom ..core import errors", True),
    ],
    ids=["own package", "one module", "a package", "from above", "a package's own module"],
)
def test_an_allowed_import_is_not(module: str, text: str, is_package: bool) -> None:
    assert violations(module, text, is_package) == []
