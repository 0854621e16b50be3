"""What the compiled form gains: server CPU a request of both forms, side by side, and the size of each compiled module.

    python benchmarks/forms.py             # prints the report; `scripts/compile` comes first
    python benchmarks/forms.py --write     # and puts it into docs/performance.md

Needs what `overhead.py` needs. Both servers run all the time, and take turns window by window.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import overhead

BUILT = overhead.ROOT / "build" / "compiled"
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


def speed_table(runs: int, seconds: int) -> list[str]:
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
        return [*rows(servers), *overhead.ratio_table(servers)]


def rows(servers: list[overhead.Contender]) -> list[str]:
    lines = ["| path | connections | form | requests/s | p99 | server CPU a request |", "|---|---|---|---|---|---|"]
    for name, count in servers[0].loads:
        for each in servers:
            row = overhead.median(each.loads[name, count])
            figures = f"{row.per_second:,.0f} | {row.p99_us / 1e3:.2f} ms | {row.cpu_us:,.0f} µs"
            lines.append(f"| {name} | {count} | {each.name} | {figures} |")
    return lines


def size_table(objects: Path = BUILT / "objects") -> list[str]:
    """The machine code of each module, the largest first."""
    sizes = {}
    for file in objects.rglob("__native_modserve___*.o"):
        sizes[file.stem.removeprefix("__native_modserve___").replace("___", ".")] = file.stat().st_size
    lines = ["", "| module | KB |", "|---|---|"]
    return lines + [
        f"| `{name}` | {size / 1e3:,.0f} |" for name, size in sorted(sizes.items(), key=lambda row: -row[1])
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="windows of each load, of which the median counts")
    parser.add_argument("--seconds", type=int, default=2, help="seconds of each load")
    parser.add_argument("--write", action="store_true", help="put the report into docs/performance.md")
    arguments = parser.parse_args()
    if missing := overhead.missing_programs():
        raise SystemExit(missing)
    if not BUILT.is_dir():
        raise SystemExit("there is no build/compiled: run scripts/compile first")
    text = "\n".join([*speed_table(arguments.runs, arguments.seconds), *size_table()])
    print(text)
    if arguments.write:
        overhead.put_into_report("forms.py", text)


if __name__ == "__main__":
    main()
