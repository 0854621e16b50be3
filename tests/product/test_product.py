"""A server to which anything happens in any order: every request that it has accepted is settled, once and rightly."""

import os

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from .machine import ProductMachine

EXAMPLES = int(os.environ.get("PRODUCT_EXAMPLES", "0"))


def test_whatever_happens() -> None:
    run_state_machine_as_test(
        ProductMachine,
        settings=settings(
            max_examples=EXAMPLES or 150,
            stateful_step_count=40,
            deadline=None,
            derandomize=not EXAMPLES,
            database=None,
            print_blob=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
