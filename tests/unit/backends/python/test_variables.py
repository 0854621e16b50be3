"""The environment variables of workers."""

import sysconfig
from pathlib import Path

import pytest

from modserve.backends.python import variables
from modserve.backends.python.worker import library_path


def test_another_interpreter() -> None:
    inherited = {"PATH": "/bin", "PYTHONHOME": "/python", "CONDA_PREFIX": "/conda", "SETTING": "a"}
    expected = {"PATH": "/bin", "SETTING": "a", "PYTHONNOUSERSITE": "1"}
    assert variables.for_other_interpreter(inherited) == expected


def test_an_environment(tmp_path: Path) -> None:
    inherited = {"PATH": "/bin", "VIRTUAL_ENV": "/of/the/server", "PYTHONNOUSERSITE": ""}
    assert variables.activate(inherited, tmp_path) == {
        "PATH": f"{tmp_path}/bin:/bin",
        "VIRTUAL_ENV": str(tmp_path),
        "VIRTUAL_ENV_PROMPT": f"({tmp_path})",
        "PYTHONNOUSERSITE": "",
    }


def test_an_environment_of_conda(tmp_path: Path) -> None:
    (tmp_path / "conda-meta").mkdir()
    assert variables.activate({"CONDA_PREFIX": "/of/the/server"}, tmp_path)["CONDA_PREFIX"] == str(tmp_path)


@pytest.mark.parametrize(("before", "joined"), [(None, "{lib}"), ("", "{lib}"), ("/cuda:/x", "{lib}:/cuda:/x")])
def test_libraries(tmp_path: Path, before: str | None, joined: str) -> None:
    (tmp_path / "lib").mkdir()
    inherited = {} if before is None else {"LD_LIBRARY_PATH": before}
    result = variables.activate(inherited, tmp_path)
    assert result["LD_LIBRARY_PATH"] == joined.format(lib=tmp_path / "lib")
    assert result[library_path.ORIGINAL] == (before or "")


@pytest.mark.parametrize(("original", "after"), [("/cuda", "/cuda"), ("", None)])
def test_the_worker_puts_the_library_path_back(
    monkeypatch: pytest.MonkeyPatch, original: str, after: str | None
) -> None:
    environ = {library_path.NAME: "/environment/lib:/cuda", library_path.ORIGINAL: original}
    monkeypatch.setattr("os.environ", environ)
    library_path.restore()
    assert environ == ({} if after is None else {library_path.NAME: after})
    library_path.restore()
    assert environ == ({} if after is None else {library_path.NAME: after})


def test_a_library_path_that_nobody_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {library_path.NAME: "/cuda"}
    monkeypatch.setattr("os.environ", environ)
    library_path.restore()
    assert environ == {library_path.NAME: "/cuda"}


def test_the_servers_packages_are_not_for_environments(tmp_path: Path) -> None:
    own = sysconfig.get_path("purelib")
    link = tmp_path / "link"
    link.symlink_to(own)
    result = variables.activate({"PYTHONPATH": f"/mine:{own}:{link}::/yours"}, tmp_path)
    assert result["PYTHONPATH"] == "/mine:/yours"
    assert "PYTHONPATH" not in variables.activate({"PYTHONPATH": own}, tmp_path)


def test_threads_of_libraries() -> None:
    assert variables.with_threads({"A": "b"}, 4, 3) == {"A": "b", "OMP_NUM_THREADS": "3"}
    assert variables.with_threads({}, 4, 0) == {"OMP_NUM_THREADS": "1"}
    assert variables.with_threads({"OMP_NUM_THREADS": "8"}, 4, 3) == {"OMP_NUM_THREADS": "8"}
    assert variables.with_threads({}, 1, 3) == {}
