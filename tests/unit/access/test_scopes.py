"""Who may do what with which model."""

import pytest

from modserve.access.identity import KINDS, Identity, kinds
from modserve.core.errors import ModserveError
from modserve.core.tenants import Tenant


def test_scopes_are_by_patterns() -> None:
    caller = Identity("a", Tenant("t"), {"team-*": frozenset({"infer"}), "x?": frozenset({"read"})})
    assert caller.allows("infer", "team-1")
    assert not caller.allows("read", "team-1")
    assert not caller.allows("infer", "other")
    assert caller.allows("read", "x1")
    assert not caller.allows("read", "x12")
    assert caller.sees("team-1")
    assert not caller.sees("y")
    assert caller.may("infer")
    assert not caller.may("admin")
    assert not caller.may_everywhere("infer")


def test_a_bracket_of_a_pattern_stands_for_itself() -> None:
    caller = Identity("a", Tenant("t"), {"m[12]": frozenset({"infer"})})
    assert caller.allows("infer", "m[12]")
    assert not caller.allows("infer", "m1")


def test_a_pattern_is_for_the_whole_name() -> None:
    caller = Identity("a", Tenant("t"), {"m": frozenset({"infer"})})
    for name in ("m\n", "xm", "M", "mm", ""):
        assert not caller.allows("infer", name)


def test_everything_is_for_the_server_too() -> None:
    caller = Identity("a", Tenant("t"), {"*": frozenset(KINDS)})
    assert all(caller.may_everywhere(kind) and caller.allows(kind, "any\nthing") for kind in KINDS)


def test_what_it_remembers_is_bounded() -> None:
    caller = Identity("a", Tenant("t"), {"a*": frozenset({"infer"})})
    for number in range(5000):
        caller.allows("infer", f"x{number}")
    assert len(caller._decisions) <= 1024
    assert caller.allows("infer", "a")


def test_a_kind_that_there_is_not() -> None:
    with pytest.raises(ModserveError, match="here: there is no kind of call 'write'"):
        kinds(["infer", "write"], "here")
