"""Numbers that are counted for many keys: none twice, and bounded."""

import numpy as np

import jfluid as fluid
from jfluid.ir import unique_name
from jfluid.ir.counts import Counts


def test_each_key_counts_from_zero():
    counts = Counts(4)
    assert [counts.number(key) for key in "abaab"] == [0, 0, 1, 2, 1]


def test_no_key_has_a_number_twice_though_keys_are_forgotten():
    draw, counts = np.random.default_rng(1), Counts(8)
    given = set()
    for _ in range(2000):
        key = f"{draw.integers(0, 40)}"
        pair = key, counts.number(key)
        assert pair not in given
        given.add(pair)
        assert len(counts) <= 8


def test_keys_with_large_counts_stay():
    counts = Counts(8)
    for i in range(100):
        assert counts.number("layer") == i
        counts.number(f"layer_{i}.w")
    assert counts.number("layer") == 100
    assert 0 < counts.number("new") < 100  # the largest count that was forgotten


def test_a_copy_counts_by_itself():
    counts = Counts(2)
    counts.number("a")
    twin = counts.copy()
    assert (twin.number("a"), twin.number("a"), counts.number("a")) == (1, 2, 1)
    counts.clear()
    assert counts.number("a") == 0


def test_names_stay_unique_beyond_the_bound(monkeypatch):
    monkeypatch.setattr(unique_name, "_MOST_KEYS", 10)
    with unique_name.guard():
        found = []
        for _ in range(30):
            made = unique_name.generate("fc")
            found += [made, unique_name.generate(f"{made}.w")]
        assert len(unique_name._generator.counts) <= 10
    assert len(set(found)) == len(found)
    assert found[:4] == ["fc_0", "fc_0.w_0", "fc_1", "fc_1.w_0"] and found[-2] == "fc_29"


def test_a_scope_counts_the_runs_of_so_many_programs(monkeypatch):
    monkeypatch.setattr("jfluid.scope._MOST_STEPS", 3)
    scope = fluid.Scope()
    for i in range(20):
        scope.steps.number(f"program {i}")
    assert len(scope.steps) <= 3


def test_counts_go_on_from_others():
    counts = Counts(3)
    counts.number("a")
    counts.update({"a": 5, "b": 2})
    assert counts.as_dict() == {"a": 5, "b": 2}
    assert counts.number("a") == 5
    counts.update(dict.fromkeys("cdef", 1))
    assert len(counts) <= 3
