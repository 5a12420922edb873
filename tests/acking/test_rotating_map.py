"""RotatingMap and the two maps with a timeout: which entries are kept, which expire, and when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from windowing.acking.timeouts import ExactTimeouts, RotatingMap, RotatingTimeouts, timeouts_of
from windowing.errors import ConfigError

KEYS = st.integers(0, 5)


def test_a_key_expires_when_the_rotation_drops_its_last_bucket():
    rotating: RotatingMap[str, int] = RotatingMap(3)
    rotating.put("a", 1)
    assert [rotating.rotate() for _ in range(3)] == [{}, {}, {"a": 1}]
    assert len(rotating) == 0


def test_put_moves_a_key_to_the_head_and_replace_does_not():
    rotating: RotatingMap[str, int] = RotatingMap(2)
    for key in ("put", "replaced"):
        rotating.put(key, 1)
    rotating.rotate()
    rotating.put("put", 2)
    rotating.replace("replaced", 2)
    assert rotating.rotate() == {"replaced": 2}
    assert rotating.get("put") == 2


def test_a_missing_key_is_none_and_replacing_it_is_an_error():
    rotating: RotatingMap[str, int] = RotatingMap()
    assert rotating.get("a") is None
    assert rotating.remove("a") is None
    assert "a" not in rotating
    with pytest.raises(KeyError):
        rotating.replace("a", 1)


@pytest.mark.parametrize("buckets", [1, 0, -1])
def test_fewer_than_two_buckets_are_refused(buckets: int):
    with pytest.raises(ConfigError, match="at least 2"):
        RotatingMap(buckets)


@pytest.mark.parametrize("timeout", [0, -5, 1.5, True, None])
def test_a_timeout_that_is_no_positive_whole_number_is_refused(timeout: object):
    with pytest.raises(ConfigError, match="timeout_ms"):
        timeouts_of(timeout, None, lambda value: 0)  # type: ignore[arg-type]


class RotatingMachine(RuleBasedStateMachine):
    """The map is compared with a dict of (value, rotations since it was put)."""

    @initialize(buckets=st.integers(2, 4))
    def begin(self, buckets: int) -> None:
        self.buckets = buckets
        self.map: RotatingMap[int, int] = RotatingMap(buckets)
        self.model: dict[int, tuple[int, int]] = {}

    @rule(key=KEYS, value=st.integers())
    def put(self, key: int, value: int) -> None:
        self.map.put(key, value)
        self.model[key] = (value, 0)

    @rule(key=KEYS, value=st.integers())
    def replace(self, key: int, value: int) -> None:
        if key in self.model:
            self.map.replace(key, value)
            self.model[key] = (value, self.model[key][1])

    @rule(key=KEYS)
    def remove(self, key: int) -> None:
        assert self.map.remove(key) == self.model.pop(key, (None, 0))[0]

    @rule()
    def rotate(self) -> None:
        aged = {key: (value, age + 1) for key, (value, age) in self.model.items()}
        self.model = {key: item for key, item in aged.items() if item[1] < self.buckets}
        assert self.map.rotate() == {key: value for key, (value, age) in aged.items() if age == self.buckets}

    @invariant()
    def the_map_equals_the_model(self) -> None:
        if hasattr(self, "map"):
            self.map.check()
            assert {key: self.map.get(key) for key in self.map} == {key: item[0] for key, item in self.model.items()}
            assert len(self.map) == len(self.model)
            assert [key for bucket in self.map.buckets() for key, _ in bucket] == list(self.map)
            assert [key for key in range(6) if key in self.map] == sorted(self.model)


TestRotatingMachine = RotatingMachine.TestCase


@given(puts=st.lists(st.tuples(st.integers(0, 60), KEYS), max_size=30), timeout=st.integers(1, 20))
def test_exact_values_expire_at_the_first_tick_one_timeout_after_their_last_put(
    puts: list[tuple[int, int]], timeout: int
):
    held: ExactTimeouts[int, int] = ExactTimeouts(timeout, lambda deadline: deadline)
    last: dict[int, int] = {}
    for now in range(100):
        due = sorted(key for key, at in last.items() if at + timeout == now)
        assert sorted(key for key, _ in held.expire(now)) == due
        last = {key: at for key, at in last.items() if key not in due}
        for at, key in puts:
            if at == now:
                held.put(key, held.deadline(now), now)
                last[key] = now
        held.check()
        assert held.next_deadline_ms() == min((at + timeout for at in last.values()), default=None)
    assert len(held) == 0


@given(
    puts=st.lists(st.tuples(st.integers(0, 60), KEYS), max_size=30),
    timeout=st.integers(1, 10),
    buckets=st.integers(2, 3),
)
def test_rotated_values_expire_within_storms_interval(puts: list[tuple[int, int]], timeout: int, buckets: int):
    held: RotatingTimeouts[int, int] = RotatingTimeouts(timeout, buckets)
    last: dict[int, int] = {}
    for now in range(100):
        for key, at in held.expire(now):
            # A put comes after the tick of its millisecond, so this is (T, 2T] for 2 buckets and (2T, 3T] for 3.
            assert at == last.pop(key)
            assert (buckets - 1) * timeout < now - at <= buckets * timeout
        for at, key in puts:
            if at == now:
                held.put(key, now, now)
                last[key] = now
        held.check()
    assert not last
    assert len(held) == 0


def test_a_map_whose_clock_jumps_far_ahead_rotates_once_and_expires_nothing_early():
    held: RotatingTimeouts[str, int] = RotatingTimeouts(10, 2)
    held.put("a", 1, 0)
    assert held.next_deadline_ms() == 10
    held.put("b", 1, 99)
    assert held.expire(100) == []
    assert held.next_deadline_ms() == 110
    assert held.expire(110) == [("a", 1), ("b", 1)]
    assert held.next_deadline_ms() is None
