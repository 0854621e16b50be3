"""Fuzzes one target, starting from its corpus: ``python tests/fuzz/fuzz_target.py NAME [SECONDS] [SEED]``.

Or several, each in a process of its own and a folder of its name: ``… NAME,NAME,… SECONDS SEED MOST_INPUTS FOLDER``.

With atheris, where there is one for this machine, and otherwise with the same mutations unguided. So is the compiled
form, of which atheris sees nothing: it would go on from the shortest input only. The first input that
fails is written to the current directory as ``crash-...``, and the process ends with a code that is not 0.
"""

import hashlib
import importlib
import importlib.util
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from modserve.form import form

_SLOW = 5
"""Seconds of CPU in which an input must be done."""
_ENDLESS = 60
"""Seconds on the clock after which libFuzzer ends an input: the machine may have stood still meanwhile."""
_MEGABYTES = 1024
"""Of memory, beside what the process began with: Linux counts the peak of the process that started it as its own."""
_GROWTH = 200
_MAX_INPUT = 20_000
_LEAST = 20
"""Inputs of an unguided run, however little time it has."""


def main(name: str, seconds: float, seed: int, most: int = -1) -> None:
    """Until `seconds` are over, or there were `most` inputs."""
    atheris = fuzzer()
    import_targets(atheris)
    if atheris is None:
        unguided(name, seconds, seed, most)
    else:
        guided(atheris, name, seconds, seed, most)


def fuzzer() -> ModuleType | None:
    """Atheris, where it is of use."""
    try:
        atheris = importlib.import_module("atheris")
    except ImportError:
        return None
    return None if form() == "compiled" else atheris


def import_targets(atheris: ModuleType | None) -> None:
    """So that the fuzzer sees what runs in them. Takes seconds of CPU with atheris."""
    before = _megabytes()
    if atheris is not None:
        with atheris.instrument_imports(include=["modserve"], exclude=_untraced()):
            import targets
    import mutations  # noqa: F401
    import targets  # noqa: F401

    _before.append(before)


_before: list[float] = []
"""Megabytes that the process had in use before it imported the targets."""


def each(names: Sequence[str], seconds: float, seed: int, most: int, folder: Path) -> None:
    """All of them, two at a time. The output of each is ``output`` in its folder, its exit status ``status``.

    The targets are imported once: the processes are forks of this one.
    """
    atheris = fuzzer()
    import_targets(atheris)
    running: dict[int, str] = {}
    for name in names:
        while len(running) == _AT_ONCE:
            _wait(running, folder)
        process = os.fork()
        if process == 0:
            _child(atheris, name, seconds, seed, most, folder / name)
        running[process] = name
    while running:
        _wait(running, folder)


_AT_ONCE = 2


def _wait(running: dict[int, str], folder: Path) -> None:
    process, status = os.wait()
    (folder / running.pop(process) / "status").write_text(str(os.waitstatus_to_exitcode(status)))


def _child(atheris: ModuleType | None, name: str, seconds: float, seed: int, most: int, folder: Path) -> NoReturn:
    """Ends as a program does: libFuzzer writes the input that failed when the process exits."""
    os.chdir(folder)
    with open("output", "wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    if atheris is None:
        unguided(name, seconds, seed, most)
    else:
        guided(atheris, name, seconds, seed, most)
    sys.exit(0)


def guided(atheris: ModuleType, name: str, seconds: float, seed: int, most: int) -> None:
    """Does not return."""
    import mutations
    import targets

    def mutate(data: bytes, max_size: int, mutation_seed: int) -> bytes:
        def fallback(given: bytes) -> bytes:
            return bytes(atheris.Mutate(given, max_size))

        return mutations.mutated(name, data, mutation_seed, fallback)[:max_size]

    def one(data: bytes) -> None:
        began = time.process_time()
        targets.run(name, data)
        assert time.process_time() - began < _SLOW, "too slow"

    with tempfile.TemporaryDirectory() as found:  # what atheris finds interesting is not kept
        atheris.Setup(
            [
                sys.argv[0],
                f"-max_total_time={seconds:.0f}",
                f"-runs={most}",
                f"-seed={seed}",
                f"-timeout={_ENDLESS}",
                f"-report_slow_units={_ENDLESS}",
                f"-rss_limit_mb={_MEGABYTES + _before[-1]:.0f}",
                f"-max_len={_MAX_INPUT}",
                "-verbosity=1",
                "-print_final_stats=1",
                found,
                str(targets.CORPUS / name),
            ],
            one,
            custom_mutator=mutate,
        )
        atheris.Fuzz()


def _untraced() -> list[str]:
    """All modules but those of the packages that targets are about: tracing takes seconds to set up.

    And ``config.override`` recurses, which atheris does not survive when the stack is at its end.
    """
    spec = importlib.util.find_spec("modserve")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    modules = [path.relative_to(root.parent).with_suffix("").parts for path in root.rglob("*.py")]
    return [".".join(parts).removesuffix(".__init__") for parts in modules if not _is_traced(parts[1:])]


def _is_traced(parts: tuple[str, ...]) -> bool:
    return parts[0] in ("core", "protocol") or parts[:2] == ("frontends", "http2")


def unguided(name: str, seconds: float, seed: int, most: int = -1) -> int:
    """Returns how many inputs there were; `most` is their largest number, -1 none."""
    import mutations
    import targets

    kept = list(targets.corpus(name).values())
    choose = random.Random(seed)
    end = time.monotonic() + seconds
    count = 0
    before = _megabytes()
    while count != most and (count < _LEAST or time.monotonic() < end):
        data = choose.choice(kept)
        for _ in range(choose.choice((1, 1, 2, 5))):
            data = mutations.mutated(name, data, choose.getrandbits(32))
        data = data[:_MAX_INPUT]
        began = time.process_time()
        try:
            targets.run(name, data)
            assert time.process_time() - began < _SLOW, "too slow"
        except BaseException:
            path = Path(f"crash-{hashlib.sha1(data).hexdigest()}")
            path.write_bytes(data)
            print(f"wrote {path.absolute()}", file=sys.stderr)
            raise
        count += 1
    grown = _megabytes() - before
    assert grown < _GROWTH, f"{grown:.0f} MB more memory after {count} inputs"
    return count


def _megabytes() -> float:
    """The most memory that was in use so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    given = sys.argv[1:]
    if len(given) == 5:
        each(given[0].split(","), float(given[1]), int(given[2]), int(given[3]), Path(given[4]))
    else:
        main(given[0], float(given[1]) if len(given) > 1 else 60, int(given[2]) if len(given) > 2 else 1)
