"""What `walk` sees."""

from pathlib import Path

from modserve.core.files.file_tree import walk


def test_files_links_and_loops(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_text("12345")
    (tmp_path / "a" / "around").symlink_to(tmp_path / "a")
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b" / "file")
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "itself").symlink_to("itself")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "x.pyc").touch()
    seen = {entry.path: entry for entry in walk(tmp_path, ("__pycache__",))}
    assert set(seen) == {"a", "a/b", "a/b/file", "a/around", "link"}
    assert {path for path, entry in seen.items() if entry.is_link} == {"a/around", "link"}
    assert (seen["link"].status.st_size, seen["link"].is_directory, seen["a/around"].is_directory) == (5, False, True)


def test_nothing_there(tmp_path: Path) -> None:
    assert list(walk(tmp_path / "nowhere")) == []
