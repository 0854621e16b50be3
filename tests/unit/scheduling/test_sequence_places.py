"""Places for sequences, shared between tenants: the pure rule in simulated time, and what the scheduler makes of it."""

import heapq
import itertools
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sequence_bench import Bench

from modserve.core.errors import OverloadedError
from modserve.core.tenants import Tenant
from modserve.scheduling.sequence_places import PlaceShares, Sequence

SECOND = 1_000_000_000
A, B, C = Tenant("a"), Tenant("b"), Tenant("c")


class Play:
    """Sequences that come and end, in time that stands still but for `until`."""

    def __init__(self, places: int) -> None:
        self.places = PlaceShares(1, places)
        self.now_ns = 0
        self.placed: list[Sequence] = []
        self._numbers = itertools.count(1)

    def begin(self, tenant: Tenant | None) -> Sequence:
        number = next(self._numbers)
        sequence = Sequence((tenant.name, number) if tenant is not None else number, self.now_ns)
        self.places.begin(sequence, tenant, self.now_ns)
        if sequence.place is not None:
            self.placed.append(sequence)
        return sequence

    def end(self, sequence: Sequence) -> Sequence | None:
        following = self.places.end(sequence, self.now_ns)
        if sequence.place is not None:
            self.placed.remove(sequence)
        if following is not None:
            assert following.place == sequence.place
            self.placed.append(following)
        return following

    def flood(self, lengths: Mapping[Tenant, int], seconds: int) -> dict[str, float]:
        """Each tenant always has sequences of this length that wait; the share of all places that each has held."""
        by_name = {tenant.name: (tenant, length) for tenant, length in lengths.items()}
        ends: list[tuple[int, int, Sequence]] = []
        held: Counter[str] = Counter()
        started = 0

        def start(sequence: Sequence) -> None:
            nonlocal started
            started += 1
            heapq.heappush(ends, (self.now_ns + by_name[name_of(sequence)][1], started, sequence))

        for _ in range(20):
            for tenant in lengths:
                sequence = self.begin(tenant)
                if sequence.place is not None:
                    start(sequence)
        while self.now_ns < seconds * SECOND:
            self.now_ns, _, sequence = heapq.heappop(ends)
            name = name_of(sequence)
            held[name] += self.now_ns - sequence.placed_ns
            following = self.end(sequence)
            assert following is not None, "somebody waits"
            start(following)
            self.begin(by_name[name_of(following)][0])
        whole = sum(held.values())
        return {name: held[name] / whole for name in by_name}


def name_of(sequence: Sequence) -> str:
    assert isinstance(sequence.key, tuple)
    return sequence.key[0]


def test_a_tenant_that_floods_does_not_keep_another_waiting() -> None:
    play = Play(4)
    flood = [play.begin(A) for _ in range(100)]
    late = play.begin(B)
    assert play.end(flood[0]) is late


def test_what_is_shared_are_places_and_not_how_often_one_gets_one() -> None:
    shares = Play(8).flood({A: 60 * SECOND, B: SECOND}, 4000)
    assert shares == pytest.approx({"a": 0.5, "b": 0.5}, abs=0.02)


@pytest.mark.parametrize("places", [1, 2, 8])
def test_places_are_shared_by_weight(places: int) -> None:
    three = Tenant("a", 3.0)
    shares = Play(places).flood({three: 7 * SECOND, B: SECOND}, 10_000)
    # With two places, each tenant always gets one: none goes without while another has two.
    assert shares == pytest.approx({1: {"a": 0.75, "b": 0.25}, 2: {"a": 0.5, "b": 0.5}}.get(places, shares), abs=0.02)
    if places == 8:
        assert shares == pytest.approx({"a": 0.75, "b": 0.25}, abs=0.07)


def test_more_tenants_than_places_take_turns_by_the_time_that_they_held_them() -> None:
    lengths = {Tenant(f"t{number}"): (number + 1) * SECOND for number in range(5)}
    shares = Play(2).flood(lengths, 10_000)
    assert shares == pytest.approx(dict.fromkeys(shares, 0.2), abs=0.02)


def test_sequences_of_a_tenant_and_those_of_nobody_get_places_in_the_order_in_which_they_began() -> None:
    for tenant in (None, A):
        play = Play(1)
        first, *others = [play.begin(tenant) for _ in range(5)]
        order = [first]
        while (following := play.end(order[-1])) is not None:
            order.append(following)
        assert order[1:] == others


def test_who_had_places_while_nobody_waited_owes_nothing() -> None:
    play = Play(1)
    held = play.begin(A)
    play.now_ns = 3600 * SECOND
    waiting = play.begin(A), play.begin(B)
    play.now_ns += SECOND
    assert play.end(held) is waiting[1]
    more = play.begin(B)
    play.now_ns += 2 * SECOND
    assert play.end(waiting[1]) is waiting[0], "a owes one second of waiting, and b has had two"
    assert play.end(waiting[0]) is more


def test_a_debt_stays_when_its_tenant_leaves_and_comes_back_and_ends_when_nobody_waits() -> None:
    play = Play(1)
    long, short, other = play.begin(A), play.begin(B), play.begin(B)
    play.now_ns = 60 * SECOND
    assert play.end(long) is short
    again = play.begin(A)
    play.now_ns += SECOND
    assert play.end(short) is other, "b has had one second, a sixty"
    assert play.end(other) is again
    play.end(again)
    play.begin(C)
    first, second = play.begin(A), play.begin(B)
    assert play.end(play.placed[0]) is first
    assert play.end(first) is second


def test_who_gives_up_waiting_leaves_the_turns_of_others_as_they_are() -> None:
    play = Play(1)
    held = play.begin(C)
    leaver, kept, other = play.begin(A), play.begin(A), play.begin(B)
    assert play.end(leaver) is None
    assert play.end(held) is kept
    assert play.end(other) is None
    assert play.end(kept) is None
    assert play.begin(B).place is not None


def test_a_new_weight_holds_at_once() -> None:
    play = Play(3)
    held = [play.begin(A), play.begin(A), play.begin(B)]
    play.begin(B)
    heavy = Tenant("a", 10.0)
    first = play.begin(A)
    play.begin(heavy)
    assert play.end(held[0]) is first, "with the old weight, it would be b's"


def test_accounts_of_idle_tenants_are_closed() -> None:
    play = Play(1)
    for number in range(10_000):
        play.end(play.begin(Tenant(f"t{number}")))
    assert len(play.places._accounts) < 200
    held = play.begin(A)
    play.begin(B)
    for number in range(10_000):
        play.end(play.begin(Tenant(f"u{number}")))
    assert len(play.places._accounts) < 200
    assert play.end(held) is not None


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.booleans(), st.integers(0, 3 * SECOND), st.integers(0, 50)),
        min_size=1,
        max_size=80,
    ),
    st.integers(1, 4),
)
def test_a_place_is_free_only_when_nobody_waits(events: list[tuple[int, bool, int, int]], count: int) -> None:
    tenants = (None, A, Tenant("b", 2.0), Tenant("b", 0.5), Tenant("d", 7.0))
    play = Play(count)
    live: list[Sequence] = []
    for tenant, begins, passes_ns, index in events:
        play.now_ns += passes_ns
        if begins or not live:
            live.append(play.begin(tenants[tenant]))
        else:
            play.end(live.pop(index % len(live)))
        assert len(play.placed) == min(count, len(live))
        assert play.places.waiting == len(live) - len(play.placed)
        held = [sequence.place for sequence in play.placed]
        assert None not in held
        assert len(set(held)) == len(held)
    while live:
        play.end(live.pop(0))
    assert not play.placed
    assert play.places._turns == []


# As the scheduler has it


def test_places_of_a_model_go_to_tenants_in_turns() -> None:
    bench = Bench(max_batch_size=1)
    for id in range(1, 4):
        bench.submit(id, "se", tenant=A)
    bench.submit(1, "se", tenant=B)
    order = []
    while bench.running:
        [entry] = bench.running
        assert entry.request.tenant is not None
        order.append(entry.request.tenant.name)
        bench.finish()
    assert order == ["a", "b", "a", "a"]


def test_a_tenant_has_at_most_so_many_sequences_as_requests() -> None:
    tenant = Tenant("a", concurrency=2)
    bench = Bench(max_batch_size=4)
    first, second = bench.submit(1, "s", tenant=tenant), bench.submit(2, "s", tenant=tenant)
    bench.finish_all()
    assert first.settled
    assert second.settled
    with pytest.raises(OverloadedError) as caught:
        bench.enqueue(3, "s", tenant=tenant)
    assert caught.value.too_many
    assert caught.value.retry_after_ns > 0
    assert caught.value.message == (
        "[request id: <id_unknown>] tenant 'a' has 2 sequences at model 'model' that are not over, and its "
        "'concurrency' is 2; end one of them first"
    )
    assert bench.scheduler.open_sequences == 2
    assert bench.submit(3, "s", tenant=B) in bench.running, "another tenant's are not counted"
    bench.submit(1, "e", tenant=tenant)
    bench.finish_all()
    assert bench.submit(3, "s", tenant=tenant) in bench.running
