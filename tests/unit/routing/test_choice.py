"""Which route a request takes."""

from collections import Counter

from modserve.routing.router import Route, next_route, route_of


def routes(**weights: float) -> list[Route]:
    return [Route(name, number, weight) for number, (name, weight) in enumerate(weights.items(), 1)]


def test_shares_are_exact_and_evenly_mixed() -> None:
    some = routes(a=5, b=1, c=1)
    names = [next_route(some).name for _ in range(14)]
    assert "".join(names) == "aabacaa" * 2
    assert all(route.credit == 0 for route in some)


def test_shares_of_any_stretch_are_right_to_within_one() -> None:
    some = routes(a=0.7, b=0.2, c=0.1)
    names = [next_route(some).name for _ in range(1000)]
    for route in some:
        for end in range(1, 1001):
            assert abs(names[:end].count(route.name) - route.weight * end) < 1.0001


def test_a_route_that_was_away_does_not_catch_up() -> None:
    some = routes(a=1, b=1)
    for _ in range(1000):
        next_route(some[:1])
    names = [next_route(some).name for _ in range(10)]
    assert names.count("b") == 5


def test_keys_keep_their_routes() -> None:
    some = routes(a=3, b=1)
    homes = {f"user {number}": route_of(f"user {number}", some).name for number in range(2000)}
    assert homes == {key: route_of(key, some).name for key in homes}
    assert 440 <= Counter(homes.values())["b"] <= 560


def test_few_keys_change_their_routes_with_the_weights() -> None:
    before, after = routes(a=90, b=10), routes(a=80, b=20)
    keys = [str(number) for number in range(2000)]
    moved = [(route_of(key, before).name, route_of(key, after).name) for key in keys]
    changes = Counter(pair for pair in moved if pair[0] != pair[1])
    assert set(changes) == {("a", "b")}, "nobody goes from the route that gains"
    assert changes["a", "b"] < 280


def test_a_route_that_goes_leaves_the_others_their_keys() -> None:
    some = routes(a=1, b=1, c=1)
    for number in range(500):
        home = route_of(str(number), some)
        if home.name != "c":
            assert route_of(str(number), some[:2]) is home


def test_any_text_is_a_key() -> None:
    assert route_of("\ud800", routes(a=1)).name == "a"
