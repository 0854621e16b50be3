"""What the state machine has found, each as it was found, but shorter."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from product.wire import models
from product.wire.clients import KEPT
from product.wire.product import Product
from product.wire.settings import SETTINGS, Setting


@pytest.fixture
def product(tmp_path: Path) -> Iterator[Product]:
    made = Product(tmp_path, Setting())
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


@pytest.mark.parametrize("places", [(6, 0), (1, 2, 3), (7, 12, 5)], ids=str)
def test_two_changes_in_place_while_requests_wait(product: Product, places: tuple[int, ...]) -> None:
    """When the first queue was empty, nobody looked at the last one any more, and the model was READY."""

    def send() -> None:
        for _ in range(9):
            product.send(models.QUEUED, KEPT)

    product.change(models.QUEUED, places, around=send)
    product.settle()


def test_kept_connections_are_served_until_the_server_has_told_them(product: Product) -> None:
    """SIGTERM cut those between two requests."""
    for _ in range(3):
        product.restart(count=4, ms=50, racers=4)


@pytest.mark.parametrize("drains", [False, True])
def test_requests_that_have_begun_to_arrive_are_served(product: Product, drains: bool) -> None:
    """SIGTERM cut those that took longer than an idle connection is waited for."""
    product.restart(count=2, ms=20, racers=1, uploads=4, drains=drains)


def test_requests_that_have_begun_to_arrive_at_two_workers(tmp_path: Path) -> None:
    product = Product(tmp_path, SETTINGS["two workers"])
    try:
        product.restart(count=2, ms=20, racers=1, uploads=4)
        product.stop()
    finally:
        product.dispose()
