"""Figures of the source: size, circles of imports, chains of inheritance, modules on the way of an inference.

    python scripts/figures.py             all of them, in some seconds
    python scripts/figures.py --packages  also the lines of code by package

A line of code is one with something on it that is neither a comment nor a docstring.
"""

import argparse
import ast
import io
import tokenize
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from source_modules import SOURCE, chains, circles, import_graph, modules, texts

LONGEST_FILE = 700
LONGEST_CHAIN = 2
_NO_CODE = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)


def code_lines(text: str) -> int:
    """Lines of a module without blank ones, comments and docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
            ):
                lines.difference_update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    return len(lines)


def long_files(source: Path = SOURCE) -> dict[str, int]:
    """Module → its lines, of those with more than `LONGEST_FILE`."""
    lengths = {module: path.read_text(encoding="utf-8").count("\n") for module, path in modules(source)}
    return {module: lines for module, lines in lengths.items() if lines > LONGEST_FILE}


def long_chains(every: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Of chains by class, as `source_modules.chains` returns them, those of more than `LONGEST_CHAIN` classes."""
    return {name: chain for name, chain in every.items() if len(chain) > LONGEST_CHAIN}


def modules_on_the_way() -> dict[str, set[str]]:
    """Files by wire that a recorded inference runs through (`scripts/call_chain.py`)."""
    import call_chain
    import uvloop

    return {
        wire: {code.co_filename for _, code in uvloop.run(call_chain.record(wire)).calls} for wire in ("http", "grpc")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", action="store_true", help="also the lines of code by package")
    arguments = parser.parse_args()
    sources = texts()
    by_package: Counter[str] = Counter()
    for module, (text, _) in sources.items():
        by_package[module.split(".")[0]] += code_lines(text)
    all_lines = sum(text.count("\n") for text, _ in sources.values())
    print(f"lines of code        {by_package.total():,} of {all_lines:,} lines in {len(sources)} files")
    if arguments.packages:
        for package, lines in by_package.most_common():
            print(f"  {package:<18} {lines:,}")
    for module, lines in sorted(lengths := long_files().items()):
        print(f"  {module} has {lines} lines")
    print(f"files over {LONGEST_FILE} lines  {len(lengths)}")
    loops = sorted(circles(import_graph(sources)), key=sorted)
    print(f"circles              {len(loops)}, with {sum(map(len, loops))} modules")
    for loop in loops:
        print(f"  {', '.join(sorted(loop))}")
    longest = [name.rpartition(".")[2] for name in max(chains(sources).values(), key=len)]
    print(f"inheritance          at most {len(longest)} of our classes: {' < '.join(longest)}")
    way = modules_on_the_way()
    numbers = " + ".join(f"{wire} {len(files)}" for wire, files in way.items())
    print(f"modules on the way   {len(set().union(*way.values()))} of an inference over both wires ({numbers})")


if __name__ == "__main__":
    main()
