"""A server to which anything happens in any order: every request that it has accepted is settled, once and rightly."""

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from .machine import ProductMachine


def thorough(examples: int, **more: object) -> settings:
    """So many runs of the machine, however long they take."""
    return settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        database=None,
        print_blob=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        **more,  # type: ignore[arg-type]
    )


def test_whatever_happens() -> None:
    run_state_machine_as_test(ProductMachine, settings=thorough(100, derandomize=True))
