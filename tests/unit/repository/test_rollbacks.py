"""The file that says which versions were rolled back."""

import json
from pathlib import Path

import pytest

from modserve.core.version import RolledBack, VersionPolicy
from modserve.repository import rollbacks
from modserve.repository.local import LocalRepository

BAD = RolledBack("it is bad", 17)


def test_each_change_of_the_file_is_of_one_version(tmp_path: Path) -> None:
    rollbacks.write(tmp_path, 2, BAD)
    rollbacks.write(tmp_path, 10, RolledBack("slow", 18, "unsaved"))
    assert rollbacks.read(tmp_path) == ({2: BAD, 10: RolledBack("slow", 18)}, "")
    rollbacks.write(tmp_path, 2, None)
    assert rollbacks.read(tmp_path) == ({10: RolledBack("slow", 18)}, "")
    assert [path.name for path in tmp_path.iterdir()] == [rollbacks.FILE]
    rollbacks.write(tmp_path, 10, None)
    rollbacks.write(tmp_path, 10, None)
    assert not list(tmp_path.iterdir())
    rollbacks.write(tmp_path, 2, BAD)
    rollbacks.write(tmp_path, 0, None)
    rollbacks.write(tmp_path, 0, None)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[", "unexpected end of data"),
        ("", "Input is a zero-length, empty document"),
        ("[]", "it is not an object of JSON"),
        ('{"01": {"reason": "a", "at_ms": 1}}', "'01' is no version, expected one such as 2"),
        ('{"2": "bad"}', 'version 2 has no {"reason": "a text", "at_ms": a whole number}'),
        ('{"2": {"reason": "a", "at_ms": 1.5}}', "version 2 has no"),
        ('{"2": {"reason": "a", "at_ms": ' + "9" * 20 + "}}", "version 2 has no"),
        ('{"2": {"reason": "\\ud800", "at_ms": 1}}', "no low surrogate in string"),
        ("\xff", "unexpected character"),
        ("[" * 100_000, "depth limit exceeded"),
        (" " * 1024 * 1024 + "{}", "it is larger than 1048576 bytes"),
    ],
    ids=range(11),
)
def test_a_file_that_says_something_else_is_ignored(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / rollbacks.FILE).write_text(content)
    versions, remark = rollbacks.read(tmp_path)
    assert versions == {}
    assert remark.startswith(
        f"'{tmp_path / rollbacks.FILE}' is ignored, and no version counts as rolled back: {reason}"
    )
    rollbacks.write(tmp_path, 2, BAD)
    assert rollbacks.read(tmp_path) == ({2: BAD}, "")


def test_nothing_is_left_of_what_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / rollbacks.FILE).mkdir()
    with pytest.raises(IsADirectoryError):
        rollbacks.write(tmp_path, 2, BAD)
    assert [path.name for path in tmp_path.iterdir()] == [rollbacks.FILE]


@pytest.mark.parametrize(
    ("rolled_back", "remedy"),
    [
        (BAD, "remove '{folder}/2', or a restart of this or another server takes version 2 for the latest again"),
        (None, "remove '{folder}/rolled_back.json', or a restart rolls back what it names"),
    ],
)
async def test_the_remedy_for_what_cannot_be_written(
    tmp_path: Path, rolled_back: RolledBack | None, remedy: str
) -> None:
    folder = tmp_path / "m"
    (folder / "2").mkdir(parents=True)
    repository = LocalRepository(tmp_path)
    listing = (await repository.look())["m"]
    (folder / rollbacks.FILE).mkdir()
    assert await repository.keep_rollback(listing, 2, rolled_back) == (
        f"'{folder / rollbacks.FILE}' cannot be written: Is a directory: {remedy.format(folder=folder)}"
    )


async def test_a_link_out_of_the_repository_is_refused(tmp_path: Path) -> None:
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    (tmp_path / "models" / "m" / rollbacks.FILE).symlink_to(tmp_path / "other.json")
    (tmp_path / "other.json").write_text("{}")
    assert (await LocalRepository(tmp_path / "models").look())["m"].refusal is not None


async def test_the_file_is_no_change_of_the_model(tmp_path: Path) -> None:
    for version in ("1", "2"):
        (tmp_path / "m" / version).mkdir(parents=True)
    before = (await LocalRepository(tmp_path).look())["m"]
    (tmp_path / "m" / rollbacks.FILE).write_text(json.dumps({"2": {"reason": "it is bad", "at_ms": 17}}))
    (tmp_path / "m" / f".{rollbacks.FILE}.0af7").write_text("{")
    after = (await LocalRepository(tmp_path).look())["m"]
    assert (after.rolled_back, after.marks, after.weights) == ({2: BAD}, before.marks, before.weights)
    assert before != after, "or polling would not see it"
    assert before.same_files(after)


@pytest.mark.parametrize(
    ("policy", "versions"),
    [
        (VersionPolicy(latest=1), [1]),
        (VersionPolicy(latest=2), [1]),
        (VersionPolicy(), [1, 2, 3]),
        (VersionPolicy(specific=(2,)), [2]),
    ],
)
def test_the_latest_versions_are_those_that_were_not_rolled_back(policy: VersionPolicy, versions: list[int]) -> None:
    assert policy.select([1, 2, 3], {2: BAD, 3: BAD}) == versions
    assert VersionPolicy(latest=1).select([2, 3], {2: BAD, 3: BAD}) == [3], "there is no other"
