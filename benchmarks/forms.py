"""What the compiled form gains: server CPU a request of both forms, side by side, and the size of the compiled form.

    python benchmarks/forms.py             # prints the report; `scripts/compile` comes first
    python benchmarks/forms.py --write     # and puts it into benchmarks/results/tables.md
    python benchmarks/forms.py --modules   # what each group of packages adds to that: forms without it beside the whole

Needs what `overhead.py` needs. All servers run all the time, and take turns window by window. `--modules` compiles a
form for each group into `build/without`, and keeps it there; it takes a list of packages in place of all groups.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import overhead

sys.path.append(str(overhead.ROOT / "scripts"))
import compiled_form

BUILT = compiled_form.TARGET
WITHOUT = overhead.ROOT / "build" / "without"
INHERITED = "core.requests.response"
"""Of what is compiled in `core`, the module that compiled modules elsewhere inherit from, which it must stay for."""
GROUPS = (
    ",".join(each for each in compiled_form.modules().compiled if each.startswith("core.") and each != INHERITED),
    "scheduling",
    "execution",
    "protocol.http,protocol.grpc",
    "frontends.http,frontends.http2,frontends.grpc",
)
"""What is left out together: packages, or those of both protocols, to build half as many forms.

What is left to the interpreter cannot inherit from what is compiled, as the gRPC front end does from that of HTTP/2.
"""
MODULE_PATHS = ("HTTP, binary tensors", "gRPC, raw tensors")
MODULE_CONNECTIONS = 16
FORMS = {"compiled": BUILT, "interpreted": overhead.ROOT / "src"}


@contextmanager
def path(folder: Path) -> Iterator[None]:
    """Servers that are started in here import modserve from `folder`."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def speed_tables(runs: int, seconds: int) -> tuple[list[str], list[str]]:
    """The figures of both forms, and their ratios."""
    ways = [way for way in overhead.paths(seconds) if way.connections == overhead.CONNECTIONS]
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        repository = overhead.write_repository(Path(directory) / "onnx")
        with path(FORMS["compiled"]):
            fast = stack.enter_context(overhead.server(repository))
        with path(FORMS["interpreted"]):
            plain = stack.enter_context(overhead.server(repository))
        servers = [overhead.Contender("compiled", fast), overhead.Contender("interpreted", plain)]
        for way in ways:
            for count in way.connections:
                for each in servers:
                    way.load(each.target, count)  # warm
                for run in range(runs):
                    for each in servers if run % 2 == 0 else reversed(servers):
                        each.loads.setdefault((way.name, count), []).append(way.load(each.target, count))
        return rows(servers), overhead.ratio_table(servers)


def rows(servers: list[overhead.Contender]) -> list[str]:
    lines = ["| path | connections | form | requests/s | p99 | server CPU a request |", "|---|---|---|---|---|---|"]
    for name, count in servers[0].loads:
        for each in servers:
            row = overhead.median(each.loads[name, count])
            figures = f"{row.per_second:,.0f} | {row.p99_us / 1e3:.2f} ms | {row.cpu_us:,.0f} µs"
            lines.append(f"| {name} | {count} | {each.name} | {figures} |")
    return lines


def folder(group: str) -> Path:
    """Where the form without a group is kept."""
    return WITHOUT / group.split(",")[0]


def module_table(groups: Sequence[str], runs: int, seconds: int) -> list[str]:
    """Forms that lack the modules of one group each, beside the form that has all."""
    compiled_form.make()
    for group in groups:
        compiled_form.make(target=folder(group), without=group.split(","))
    ways = [way for way in overhead.paths(seconds) if way.name in MODULE_PATHS]
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        repository = overhead.write_repository(Path(directory) / "onnx")
        servers = []
        for name, built in [("", BUILT), *((group, folder(group)) for group in groups)]:
            with path(built):
                servers.append(overhead.Contender(name, stack.enter_context(overhead.server(repository))))
        for way in ways:
            for each in servers:
                way.load(each.target, MODULE_CONNECTIONS)  # warm
            for run in range(runs):
                for each in servers if run % 2 == 0 else reversed(servers):
                    load = way.load(each.target, MODULE_CONNECTIONS)
                    each.loads.setdefault((way.name, MODULE_CONNECTIONS), []).append(load)
    return module_rows(servers)


def module_rows(servers: Sequence[overhead.Contender]) -> list[str]:
    """The first server is the whole form; the others' names are what they lack."""
    whole = servers[0]
    listed = compiled_form.modules().compiled
    names = " | ".join(f"{name}: server CPU a request | beside the whole" for name, _ in whole.loads)
    lines = [f"| left out | modules | {names} |", "|---|---|" + "---|---|" * len(whole.loads)]
    for each in servers:
        packages = each.name.split(",") if each.name else []
        columns = [", ".join(sorted({f"`{'.'.join(name.split('.')[:2])}`" for name in packages})) or "nothing"]
        columns.append(str(sum(compiled_form.within(name, packages) for name in listed)))
        for way, loads in each.loads.items():
            ratios = [mine.cpu_us / all_.cpu_us for mine, all_ in zip(loads, whole.loads[way], strict=True)]
            columns += [f"{overhead.median(loads).cpu_us:,.1f} µs", f"{statistics.median(ratios):.2f}"]
        lines.append(f"| {' | '.join(columns)} |")
    return lines


def size(built: Path = BUILT) -> str:
    """What compiling took, and what it made."""
    modules = len(compiled_form.modules().compiled)
    source = sum(file.stat().st_size for file in (overhead.ROOT / "src").rglob("*.py"))
    made = f"{modules} modules, compiled in {compiled_form.seconds(built):.0f} s"
    return f"{made}: {compiled_form.size(built) / 1e6:.1f} MB, beside {source / 1e6:.1f} MB of source."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="windows of each load, of which the median counts")
    parser.add_argument("--seconds", type=int, default=2, help="seconds of each load")
    parser.add_argument("--modules", nargs="*", metavar="PACKAGE[,PACKAGE]", help="measure what each group adds")
    parser.add_argument("--write", action="store_true", help="put the report into benchmarks/results/tables.md")
    arguments = parser.parse_args()
    if missing := overhead.missing_programs():
        raise SystemExit(missing)
    if not BUILT.is_dir():
        raise SystemExit("there is no build/compiled: run scripts/compile first")
    if arguments.modules is None:
        script = "forms.py"
        speeds, ratios = speed_tables(arguments.runs, arguments.seconds)
        print("\n".join(ratios))
        lines = [*speeds, "", size()]
    else:
        script = "forms.py modules"
        lines = module_table(arguments.modules or GROUPS, arguments.runs, arguments.seconds)
    print(text := "\n".join(lines))
    if arguments.write:
        overhead.put_into_report(script, text)


if __name__ == "__main__":
    main()
