import math
from dataclasses import replace

import pytest

from modserve.core.errors import Code, ModserveError
from modserve.core.requests.request import InferenceRequest
from modserve.core.tenants import Tenant


def test_a_tenant_needs_no_more_than_its_name() -> None:
    tenant = Tenant("a")
    assert tenant.weight == 1
    limits = (tenant.requests_per_second, tenant.rows_per_second, tenant.tokens_per_second, tenant.concurrency)
    assert limits == (None,) * 4


@pytest.mark.parametrize("weight", [0, -1, math.nan, math.inf, 1e7, 1e-7])
def test_a_weight_that_makes_no_sense_is_refused(weight: float) -> None:
    with pytest.raises(ModserveError, match=r"the weight of tenant .a. is .*, expected a number from") as caught:
        Tenant("a", weight)
    assert caught.value.code is Code.INVALID_ARG


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
@pytest.mark.parametrize(
    "limit", ["requests_per_second", "rows_per_second", "tokens_per_second", "concurrency", "queue_size"]
)
def test_a_limit_that_lets_nothing_through_is_refused(limit: str, value: float) -> None:
    with pytest.raises(ModserveError, match=f"'{limit}' of tenant 'a' is {value}, expected a number above 0"):
        Tenant("a", **{limit: value})  # type: ignore[arg-type]


def test_a_tenant_without_a_name_is_refused() -> None:
    with pytest.raises(ModserveError, match="the name of a tenant is empty"):
        Tenant("")


def test_requests_have_no_tenant_unless_somebody_says_so() -> None:
    assert InferenceRequest("m", {}).tenant is None
    assert replace(InferenceRequest("m", {}, tenant=Tenant("a")), id="1").tenant == Tenant("a")
