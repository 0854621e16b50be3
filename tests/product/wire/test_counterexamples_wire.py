"""What the state machine has found, each as it was found, but shorter."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from product.wire import models
from product.wire.product import Product


@pytest.fixture
def product(tmp_path: Path) -> Iterator[Product]:
    made = Product(tmp_path, ())
    try:
        yield made
        made.restore()
        made.stop()
    finally:
        made.dispose()


def test_a_change_in_place_leaves_no_process_of_a_python_model(product: Product) -> None:
    """Each one started another process to have the model described, and forgot the one before."""
    before = product.children(models.MANY)
    product.change(models.MANY, [0, 0, 0])
    assert product.children(models.MANY) == before
    product.change(models.MANY, [1, 0])
    product.until(lambda: len(product.children(models.MANY)) == len(before), "processes are left")
