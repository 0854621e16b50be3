"""Tests close their clients and sockets. An open one fails the test in which the garbage collector finds it."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
OPENERS = frozenset(
    [
        "AsyncClient",
        "HTTPConnection",
        "HTTPSConnection",
        "InferenceServerClient",
        "create_connection",
        "httpx.Client",
        "insecure_channel",
        "secure_channel",
        "socket.create_server",
        "socket.socket",
        "urlopen",
    ]
)
CLOSERS = frozenset(["closing", "enter_async_context", "enter_context"])
LEFT_OPEN: Mapping[str, str] = {
    "product/wire/clients.py: _by_kept": "kept for further requests; closed on failure, and by `Clients.close`",
}
"""Reasons, by file and function."""

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def dotted(node: ast.AST) -> str:
    """Return the name in the source, ``a.b.c``; of anything else only the attributes at its end."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


class Module:
    """The syntax of a file."""

    def __init__(self, source: str) -> None:
        self._tree = ast.parse(source)
        self._nodes = list(ast.walk(self._tree))
        self._above = {child: node for node in self._nodes for child in ast.iter_child_nodes(node)}
        self.helpers = frozenset(
            function.name
            for call in self._openings(frozenset())
            if isinstance(function := self._around(call, *FUNCTIONS), FUNCTIONS) and self._is_returned(call, function)
        )
        """Functions that return what they have opened: their callers close it."""

    def left_open(self, helpers: Mapping[str, frozenset[str]]) -> Iterator[tuple[int, str]]:
        """Line and function of each call that opens something; `helpers` are those of other modules."""
        for call in self._openings(self.helpers | self._imported(helpers)):
            function = self._around(call, *FUNCTIONS)
            if not self._is_returned(call, function) and not any(map(self._closes, self._uses(call))):
                yield call.lineno, function.name if isinstance(function, FUNCTIONS) else ""

    def _openings(self, helpers: frozenset[str]) -> Iterator[ast.Call]:
        for node in self._nodes:
            if isinstance(node, ast.Call) and (name := dotted(node.func)):
                opens = name in helpers or name in OPENERS or name.rpartition(".")[2] in OPENERS
                if opens and not any(each.arg == "transport" for each in node.keywords):  # httpx, without sockets
                    yield node

    def _imported(self, helpers: Mapping[str, frozenset[str]]) -> frozenset[str]:
        return frozenset(
            alias.asname or alias.name
            for node in self._nodes
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if alias.name in helpers.get((node.module or "").rpartition(".")[2], ())
        )

    def _around(self, node: ast.AST, *kinds: type[ast.AST]) -> ast.AST:
        while (node := self._above[node]) is not self._tree and not isinstance(node, kinds):
            pass
        return node

    def _uses(self, call: ast.Call) -> Iterator[ast.expr]:
        """The call, and wherever the function, or class, has the name or attribute to which its value is bound."""
        value: ast.expr = call
        while isinstance(above := self._above[value], ast.Await | ast.IfExp):
            value = above
        yield value
        if isinstance(above, ast.Assign):
            target = above.targets[0]
            scope = self._around(above, *((ast.ClassDef,) if isinstance(target, ast.Attribute) else FUNCTIONS))
            for node in ast.walk(scope):
                if isinstance(node, ast.Name | ast.Attribute) and dotted(node) == dotted(target) != "":
                    yield node

    def _is_returned(self, call: ast.Call, function: ast.AST) -> bool:
        """Return whether a plain function returns it: calls of methods and of fixtures are not looked for."""
        return (
            isinstance(function, FUNCTIONS)
            and function in self._tree.body
            and not function.decorator_list
            and any(isinstance(self._above[use], ast.Return) for use in self._uses(call))
        )

    def _closes(self, use: ast.expr) -> bool:
        above = self._above[use]
        if isinstance(above, ast.Call):
            return use in above.args and dotted(above.func).rpartition(".")[2] in CLOSERS
        if isinstance(above, ast.Attribute):
            return above.attr == "close" and (not isinstance(use, ast.Name) or self._is_last(use))
        return isinstance(above, ast.withitem)

    def _is_last(self, use: ast.expr) -> bool:
        """Return whether it is in a ``finally`` clause, or behind the ``yield`` of a fixture."""
        function = self._around(use, *FUNCTIONS)
        if any(isinstance(each, ast.Yield) and each.lineno < use.lineno for each in ast.walk(function)):
            return True
        node: ast.AST = use
        while node is not function:
            below, node = node, self._above[node]
            if isinstance(node, ast.Try) and below in node.finalbody:
                return True
        return False


@pytest.mark.parametrize(
    "body",
    [
        "with urlopen(url) as answer: pass",
        "async with grpc.aio.insecure_channel(url) as channel: pass",
        "with closing(HTTPConnection(host)) as connection: pass",
        "client = stack.enter_context(module.InferenceServerClient(url))",
        "connection = await create_connection(url) if url else HTTPConnection(host)\n with closing(connection): pass",
        "connection = HTTPConnection(host)\n try: pass\n finally: connection.close()",
        "client = http.InferenceServerClient(url)\n yield client\n client.close()",
        "socket.create_connection(place).close()",
        "return InferenceServerClient(url)",
        "found = socket.socket()\n return found",
        "return httpx.AsyncClient(transport=transport)",
    ],
)
def test_what_is_closed(body: str) -> None:
    assert not [*Module(f"async def test():\n {body}").left_open({})]


@pytest.mark.parametrize(
    "source",
    [
        "async def test():\n InferenceServerClient(url).is_server_live()",
        "def test():\n client = InferenceServerClient(url)\n client.close()",
        "def test():\n other = InferenceServerClient(url)\n with client: pass",
        "@fixture\ndef test():\n return InferenceServerClient(url)",
        "class A:\n def test(self): self.client = InferenceServerClient(url)",
        "def client():\n return InferenceServerClient(url)\ndef test():\n client().is_server_live()",
        "from wire import connect\ndef test():\n connect(port).request()",
    ],
)
def test_what_is_not(source: str) -> None:
    assert [name for _, name in Module(source).left_open({"wire": frozenset(["connect"])})] == ["test"]


def test_all_are_closed() -> None:
    sources = {path: path.read_text() for path in sorted(TESTS.rglob("*.py"))}
    modules = {path: Module(source) for path, source in sources.items() if any(name in source for name in OPENERS)}
    helpers: dict[str, frozenset[str]] = {}
    for path, module in modules.items():
        if module.helpers:
            helpers[path.stem] = helpers.get(path.stem, frozenset()) | module.helpers
    for path, source in sources.items():
        if path not in modules and any(f"{name} import " in source for name in helpers):
            modules[path] = Module(source)
    found = {
        f"{path.relative_to(TESTS)}: {function}": f"{path}:{line}"
        for path, module in modules.items()
        for line, function in module.left_open(helpers)
    }
    assert LEFT_OPEN.keys() - found.keys() == set(), "no longer needed"
    places = [place for name, place in found.items() if name not in LEFT_OPEN]
    assert not places, "\n".join(["left open:", *places])
