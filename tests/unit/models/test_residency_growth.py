"""How large the models are that stay in memory, from a process whose memory the test sets."""

from pathlib import Path

import pytest

from modserve.models.residency.memory import Growth, Meter
from modserve.models.residency.memory import MeasuredLoad as LoadUnderWay

MB = 2**20


class Bench:
    def __init__(self, tmp_path: Path) -> None:
        self.memory = 100 * MB
        self.folder = tmp_path
        self.sizes: dict[str, int] = {}
        self.growth = Growth(Meter(own=lambda: self.memory), share=lambda pid: pid * MB)

    def begin(self, name: str, megabytes: int) -> LoadUnderWay:
        directory = self.folder / name
        directory.mkdir()
        with (directory / "weights").open("wb") as file:
            file.truncate(megabytes * MB)
        return self.growth.begin(directory)

    def end(self, name: str, load: LoadUnderWay, *processes: int) -> None:
        def measured(size: int) -> None:
            self.sizes[name] = round(size / MB)

        self.growth.end(load, processes, measured)()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_load_that_is_alone_has_all_of_it(bench: Bench) -> None:
    for name, grown in (("a", 30), ("b", 7)):
        load = bench.begin(name, 1)
        bench.memory += grown * MB
        bench.end(name, load)
        bench.memory += 50 * MB  # requests
    assert bench.sizes == {"a": 30, "b": 7}


def test_a_process_that_gets_smaller(bench: Bench) -> None:
    load = bench.begin("a", 5)
    bench.memory -= 10 * MB
    bench.end("a", load)
    assert bench.sizes == {"a": 0}


def test_several_divide_by_their_files(bench: Bench) -> None:
    first, second = bench.begin("a", 30), bench.begin("b", 60)
    bench.memory += 120 * MB
    bench.end("a", first)
    assert bench.sizes == {}
    bench.end("b", second)
    assert bench.sizes == {"a": 40, "b": 80}


def test_what_one_has_added_alone_is_its_own(bench: Bench) -> None:
    first, second = bench.begin("a", 30), bench.begin("b", 60)
    bench.memory += 60 * MB
    bench.end("a", first)
    bench.memory += 30 * MB
    bench.end("b", second)
    assert bench.sizes == {"a": 30, "b": 60}


def test_models_in_processes_of_their_own(bench: Bench) -> None:
    first, second = bench.begin("a", 30), bench.begin("b", 600)
    bench.memory += 30 * MB
    bench.end("a", first)
    bench.end("b", second, 700, 50)
    assert bench.sizes == {"a": 30, "b": 750}
    alone = bench.begin("c", 1)
    bench.memory += 5 * MB  # what the server needs to speak to it
    bench.end("c", alone, 20)
    assert bench.sizes["c"] == 20


def test_a_load_that_fails_takes_its_part(bench: Bench) -> None:
    first, second = bench.begin("a", 30), bench.begin("b", 30)
    bench.memory += 60 * MB
    bench.growth.end(first)()
    bench.end("b", second)
    assert bench.sizes == {"b": 30}


def test_a_system_that_says_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.memory = 0
    bench.end("a", bench.begin("a", 30))
    assert bench.sizes == {}
