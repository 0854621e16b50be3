"""Files that are served without a repository: what runs them."""

from pathlib import Path

import pytest

from modserve.core.errors import ModserveError
from modserve.models.loading.one_file import model_file


@pytest.mark.parametrize("name", ["iris.skops", "iris.joblib", "iris.pkl", "iris.pickle"])
def test_any_name_of_a_file_of_scikit_learn(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    file = model_file(tmp_path / name, ["sklearn"])
    assert (file.name, file.backend, file.filename) == ("iris", "sklearn", name)


def test_an_ending_that_tells_only_with_its_name(tmp_path: Path) -> None:
    for name in ("model.txt", "cancer.txt"):
        (tmp_path / name).touch()
    file = model_file(tmp_path / "model.txt", ["fil"])
    assert file.backend == "fil"
    assert b"predict_proba" in file.config(measured=True)
    with pytest.raises(ModserveError, match=r"with this ending, models are called model\.txt; 'modserve engines'"):
        model_file(tmp_path / "cancer.txt", ["fil"])
