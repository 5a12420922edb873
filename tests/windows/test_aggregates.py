"""Windows with aggregate=: the same firings, counts and results as full windows, without storing tuples."""

from __future__ import annotations

import json
import tracemalloc
from bisect import insort
from collections import Counter, namedtuple
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.windows.histories import FAR_MS, moved, run_steps
from windowing.errors import BoltError, ConfigError, SnapshotError
from windowing.testing.replay import LosslessReplay, config_of
from windowing.testing.strategies import cases
from windowing.windows import aggregate as agg
from windowing.windows.config import Lateness, WindowConfig
from windowing.windows.events import Activation, Expired
from windowing.windows.executor import WindowedBoltExecutor, machine_for
from windowing.windows.manager import WindowManager
from windowing.windows.measures import Count, Duration, count, millis
from windowing.windows.panes import NumberPaneManager, TimePaneManager
from windowing.windows.partials import Aggregation, KeyMerge, SlidingMerge
from windowing.windows.trigger import CountTriggerPolicy

PANED = pytest.mark.parametrize("mix", ["D/D", "C/C"])
EITHER: dict[str, Any] = dict.fromkeys(
    ("event_time", "keyed", "key_ttl", "offset", "lateness", "repeat", "idle", "future", "source")
)


def longest(a: list[int], b: list[int]) -> list[int]:
    return sorted([*a, *b])[-3:]


ALL = {
    "n": agg.count(),
    "total": agg.sum(),
    "mean": agg.mean(),
    "least": agg.min(),
    "most": agg.max(),
    "top": agg.fold(list, lambda acc, value: longest(acc, [value]), longest, result=tuple),
}

ALONE = {name: {"n": agg.count(), name: part} for name, part in ALL.items() if name != "n"}
"""Each aggregator beside a count: the most common case, which has paths of its own."""


class Recorded(LosslessReplay):
    """A run whose windows are recorded as length and result, and expiries as counts."""

    def __init__(self, case: dict[str, Any], config: WindowConfig, manager: Any) -> None:
        super().__init__(case, config, lambda w: [w.key, w.start_timestamp, len(w), w.aggregate])
        self.executor.use(manager)

    def _events(self, index: int, effect: Any) -> Any:
        if not isinstance(effect, Expired):
            yield from super()._events(index, effect)
        elif effect.spread:
            yield from ([index + at, "expire", 1, effect.key] for at in range(effect.count))
        else:
            yield [index, "expire", effect.count, effect.key]


def history(events: list[Any]) -> tuple[list[Any], Counter[Any]]:
    """The windows and late tuples in order of their ops, and how many tuples of which key expired with which op."""
    expired: Counter[Any] = Counter()
    for op, kind, *what in events:
        if kind == "expire":
            expired[op, what[1]] += what[0]
    seen = [event for event in sorted(events, key=lambda event: event[0]) if event[1] != "expire"]
    return seen, expired


def run_of(run: LosslessReplay, case: dict[str, Any]) -> tuple[list[Any], Counter[Any]]:
    return history([event for step in run_steps(case, run) for event in step])


def panes_of(config: WindowConfig) -> TimePaneManager | NumberPaneManager:
    return TimePaneManager(config) if isinstance(config.length, Duration) else NumberPaneManager(config)


def over_windows(config: WindowConfig) -> WindowManager:
    return WindowManager(config, fold=Aggregation(config.aggregate).fold)


# -- panes equal full windows ------------------------------------------------------------------------------------------


@PANED
@given(data=st.data(), batched=st.booleans(), by_ms=st.sampled_from([0, 0, *FAR_MS]))
def test_panes_give_the_results_of_full_windows(mix, data, batched, by_ms):
    case = moved(data.draw(cases(mix=mix, **{**EITHER, "max_steps": 24})), by_ms) | {"batched": batched}
    config = config_of(case, aggregate=data.draw(st.sampled_from([ALL, *ALONE.values()])))
    panes, full = Recorded(case, config, panes_of(config)), Recorded(case, config, over_windows(config))
    assert run_of(panes, case) == run_of(full, case)
    assert panes.executor.counts() == full.executor.counts()


@pytest.mark.parametrize("aggregate", [ALL, *ALONE.values()], ids=["all", *ALONE])
@given(values=st.lists(st.integers(-3, 3)), missing=st.booleans())
def test_a_partial_of_values_is_that_of_adding_them_one_by_one_or_in_a_run(aggregate, values, missing):
    if missing and "top" not in aggregate:
        values = [value or None for value in values]
    aggregation = Aggregation(aggregate)
    one_by_one, run = aggregation.init(), aggregation.init()
    for value in values:
        aggregation.add(one_by_one, value)
    aggregation.add_many(run, values)
    assert aggregation.of(values) == one_by_one == run


runs = st.lists(st.lists(st.sampled_from([1, 2.5, -0.0, 1e16, True, None, "x", Fraction(1, 3)]), min_size=1))


@given(runs=runs, sequential=st.booleans(), named=st.booleans())
def test_the_partials_of_many_runs_are_those_of_each(runs, sequential, named):
    def outcome(find):
        try:
            return repr(find())  # tells -0.0 from 0.0 and 1 from True
        except BoltError as problem:
            return str(problem)

    aggregation = Aggregation({"n": agg.count(), "sum": agg.sum()} if named else agg.sum())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agg, "_SUM_IS_SEQUENTIAL", sequential and agg._SUM_IS_SEQUENTIAL)
        assert outcome(lambda: aggregation.of_each(runs)) == outcome(lambda: list(map(aggregation.of, runs)))


@PANED
@given(data=st.data())
def test_the_counts_equal_those_of_full_windows_after_every_op(mix, data):
    case = data.draw(cases(mix=mix, **{**EITHER, "max_steps": 24}))
    config = config_of(case, aggregate=agg.count())
    panes, full = Recorded(case, config, panes_of(config)), Recorded(case, config, over_windows(config))
    for _ in zip(run_steps(case, panes), run_steps(case, full), strict=True):
        assert panes.executor.counts() == full.executor.counts()


@PANED
@given(data=st.data(), batched=st.booleans())
def test_panes_resumed_from_json_are_bit_identical(mix, data, batched):
    """Floats that lose bits in additions: any other order or grouping would change the result."""
    case = data.draw(cases(mix=mix, **{**EITHER, "max_steps": 24})) | {"batched": batched}
    values = data.draw(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=9))
    floats = agg.fold(list, lambda acc, n: [*acc, values[n % len(values)]], lambda a, b: a + b, sum)
    config = config_of(case, aggregate={"sum": agg.sum(), "mean": agg.mean(), "floats": floats})
    through, stopped = Recorded(case, config, panes_of(config)), Recorded(case, config, panes_of(config))
    events = []
    for step in run_steps(case, stopped):
        events += step
        saved = json.dumps(stopped.executor.snapshot())
        stopped.executor = stopped.build()
        stopped.executor.restore(json.loads(saved))
        assert json.dumps(stopped.executor.snapshot()) == saved
        older = stopped.build()
        older.restore(in_the_old_format(json.loads(saved)))
        assert json.dumps(older.snapshot()) == saved
    assert repr(history(events)) == repr(run_of(through, case))


def in_the_old_format(saved):
    """Return a snapshot with the cells of its panes as they were stored until November 2026: [key, partial]."""
    manager = saved["manager"]
    if manager["machine"] == "TimePaneManager":
        manager["panes"] = [
            [end, shown, [[key, list(cell)] for key, cell in zip(keys, zip(*columns, strict=True), strict=True)]]
            for end, shown, keys, columns in manager["panes"]
        ]
    for panes in (track["panes"] for track in manager.get("tracks", ())):
        ends, columns = panes.pop("cells")
        panes["panes"] = [[end, list(cell)] for end, cell in zip(ends, zip(*columns, strict=True), strict=True)]
    return saved


def test_composite_keys_of_panes_are_tuples_again_after_json():
    manager = manager_of(millis(10), millis(10), agg.count(), timestamp="ts", key=("k", "n"))
    list(manager.add_batch([1, 2], [5, 6], [("a", 1), ("b", 2)]))
    other = manager_of(millis(10), millis(10), agg.count(), timestamp="ts", key=("k", "n"))
    other.restore(json.loads(json.dumps(manager.snapshot())))
    list(other.add_batch([3], [7], [("a", 1)]))
    fired = [(e.window.key, e.window.aggregate) for e in other.drain() if isinstance(e, Activation)]
    assert fired == [(("a", 1), 2), (("b", 2), 1)]


def test_a_snapshot_has_few_lists_per_pane_for_any_number_of_keys():
    manager = manager_of(millis(1000), millis(10), {"n": agg.count(), "total": agg.sum()}, timestamp="ts", key=("k",))
    list(manager.add_batch([1] * 5000, [n // 100 * 10 for n in range(5000)], [f"k{n % 100}" for n in range(5000)]))
    saved = json.dumps(manager.snapshot()["panes"])
    assert json.loads(saved)[0][2][:2] == ["k0", "k1"]
    assert saved.count("[") == 1 + 50 * 5


def test_a_snapshot_has_few_lists_for_any_number_of_panes_of_a_key():
    manager = manager_of(count(5000), count(1), {"n": agg.count(), "total": agg.sum()}, timestamp="ts")
    list(manager.add_batch([1] * 5000, list(range(5000))))
    list(manager.advance(5000))
    (track,) = manager.snapshot()["tracks"]
    assert track["panes"]["cells"][0] == list(range(2, 5001))
    assert json.dumps(track).count("[") == 7


@PANED
@given(data=st.data())
def test_panes_fed_in_batches_add_in_the_same_order_as_one_by_one(mix, data):
    case = data.draw(cases(mix=mix, **{**EITHER, "max_steps": 24}))
    config = config_of(case, aggregate=agg.fold(list, lambda acc, value: [*acc, value], lambda a, b: a + b))
    one, many = Recorded(case, config, panes_of(config)), Recorded(case, config, panes_of(config))
    assert run_of(one, case) == run_of(many, {**case, "batched": True})


def test_keys_of_an_out_of_order_batch_fire_in_order_of_arrival():
    """Not in the order of the panes in which the batch is processed."""
    manager = manager_of(millis(1), millis(1), agg.count(), timestamp="ts", key=("k",))
    list(manager.add_batch([1, 2, 3], [0, 0, -5], ["a", "b", "b"]))
    effects = list(manager.advance(0))
    fired = [(e.window.key, e.window.end_timestamp) for e in effects if isinstance(e, Activation)]
    assert fired == [("b", -5), ("a", 0), ("b", 0)]
    assert [(e.key, e.count) for e in effects if isinstance(e, Expired)] == [("a", 1), ("b", 2)]


def test_values_in_a_time_pane_are_added_in_order_of_arrival():
    manager = manager_of(millis(20), millis(10), agg.fold(str, lambda a, b: a + b, lambda a, b: a + b), timestamp="ts")
    list(manager.add_batch(list("abcdef"), [9, 1, 15, 9, 11, 5]))
    fired = [effect.window.aggregate for effect in manager.drain() if isinstance(effect, Activation)]
    assert fired == ["abdf", "abdfce", "ce"]


@PANED
@pytest.mark.parametrize("keyed", [False, True])
@given(data=st.data())
def test_windows_of_many_panes_equal_full_windows(mix, keyed, data):
    """Long windows over short slides, in many turns: blocks that end inside windows, panes that change after they were merged."""
    kind = "duration_ms" if mix == "D/D" else "count"
    options = {"event_time": True, "keyed": keyed, "lateness": "window" if mix == "D/D" else None, "max_steps": 24}
    case = data.draw(cases(mix=mix, **{**EITHER, **options}))
    case = case | {"length": {kind: data.draw(st.integers(4, 9))}, "slide": {kind: data.draw(st.integers(1, 3))}}
    config = config_of(case, aggregate=agg.fold(list, lambda acc, value: [*acc, value], lambda a, b: a + b, sorted))
    panes, full = Recorded(case, config, panes_of(config)), Recorded(case, config, over_windows(config))
    assert run_of(panes, case) == run_of(full, case)


@given(st.integers(1, 12), st.integers(0, 3), st.data())
def test_a_merge_whose_panes_change_is_that_of_a_merge_from_scratch(length, offset, data):
    """Cells are texts that show how they were merged: the order of the merges is the same too, so a sum of floats is."""
    ends: list[int] = []
    panes: dict[int, dict[str, list[str]]] = {}

    def merge_of() -> SlidingMerge:
        return SlidingMerge(ends, panes, lambda a, b: [f"({a[0]}{b[0]})"], length, offset)

    kept, reached = merge_of(), 0
    for turn in range(data.draw(st.integers(1, 12))):
        # What no later window holds is dropped, and nothing is added to it.
        backs = st.sampled_from([0, 0, 0, *range(-4, length)])
        for back, key in data.draw(st.lists(st.tuples(backs, st.sampled_from("abc")), max_size=8)):
            end = reached - back
            if end not in panes:
                panes[end] = {}
                insort(ends, end)
            if key in panes[end]:
                panes[end][key][0] += str(turn % 10)  # in place, as values are added
            else:
                panes[end][key] = [f"{key}{end}"]
            assert kept.note(end, (key,)) is (turn > 0 and end <= reached)
        kept.settle()
        reached += data.draw(st.integers(1, 6))
        head, tail = kept.window(reached)
        wanted_head, wanted_tail = merge_of().window(reached)
        assert {key: entry[0] for key, entry in head.items()} == {key: entry[0] for key, entry in wanted_head.items()}
        assert tail == wanted_tail
        for end in [each for each in ends if each <= reached - length + 1]:
            ends.remove(end)
            del panes[end]


@given(st.integers(1, 12), st.sets(st.integers(1, 60)), st.lists(st.integers(1, 6), min_size=1, max_size=20))
def test_the_panes_of_one_key_are_merged_as_those_of_many_keys(length, numbers, steps):
    def merge(a: list[str], b: list[str]) -> list[str]:
        return [f"({a[0]}{b[0]})"]

    ends = sorted(numbers)
    partials = [[f"{end} "] for end in ends]
    many = SlidingMerge(
        ends, {end: {None: partial} for end, partial in zip(ends, partials, strict=True)}, merge, length, 0
    )
    alone, end = KeyMerge(), 0
    for step in steps:
        end += step
        head, tail = many.window(end)
        wanted = [*(entry[0] for entry in head.values()), *tail.values()]
        assert list(alone.window(end, length, ends, partials, merge)) == wanted
        while ends and ends[0] <= end + 1 - length:  # as panes are dropped that no later window holds
            del ends[0], partials[0]


def test_a_tuple_added_to_a_merged_pane_is_in_the_next_window():
    manager = manager_of(millis(8), millis(2), agg.sum(), timestamp="ts", lateness=Lateness.WINDOW)
    list(manager.add_batch([1, 10, 100], [1, 4, 9]))
    assert effects_of(manager.advance(4)) == [(2, 1, 1), (4, 2, 11)]
    for late, ts in ((1000, 2), (10000, 4)):
        list(manager.add(late, ts))
    assert effects_of(manager.advance(6)) == [(6, 4, 11011)]
    list(manager.add(100000, 3))
    assert effects_of(manager.advance(10)) == [(8, 5, 111011), (10, 4, 110110), 5]


@given(cases(mix=None, **{**EITHER, "max_steps": 24}))
def test_every_mix_of_measures_has_the_aggregate_of_its_windows(case):
    """Fractions and whole numbers, so that the order of additions cannot matter; through the executor, as users get it."""
    config = config_of(case, aggregate={"total": agg.sum(), "n": agg.count(), "own": ALL["top"]})
    run = Recorded(case, config, machine_for(config))
    full = LosslessReplay(case, config_of(case))
    firings = [event[2:] for step in run_steps(case, run) for event in step if event[1] == "activate"]
    windows = [event[2:] for step in run_steps(case, full) for event in step if event[1] == "activate"]
    assert len(firings) == len(windows)
    for (_, _, size, result, reference), (current, _, _, end) in zip(firings, windows, strict=True):
        assert (size, reference) == (len(current), end)
        assert result == {"total": sum(current), "n": len(current), "own": tuple(sorted(current)[-3:])}


@given(
    st.lists(st.tuples(st.integers(0, 30), st.fractions(max_denominator=9)), min_size=1, max_size=40),
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(0, 11),
)
def test_out_of_order_tuples_are_added_to_their_pane(tuples, length, slide, offset):
    config = WindowConfig(
        length=Duration(length),
        slide=Duration(slide),
        timestamp="ts",
        offset_ms=offset % slide,
        aggregate={"sum": agg.sum("value"), "mean": agg.mean("value")},
    )
    manager = panes_of(config)
    list(manager.add_batch([{"value": value} for _, value in tuples], [ts for ts, _ in tuples]))
    seen = {}
    for effect in manager.drain():
        if isinstance(effect, Activation):
            seen[effect.window.end_timestamp] = (len(effect.window), effect.window.aggregate)
    ends = {e for ts, _ in tuples for e in range(ts, ts + length) if (e - offset % slide) % slide == 0}
    expected = {}
    for end in ends:
        values = [value for ts, value in tuples if end - length < ts <= end]
        expected[end] = (len(values), {"sum": sum(values), "mean": Fraction(sum(values), len(values))})
    assert seen == expected


# -- single cases ------------------------------------------------------------------------------------------------------


def effects_of(effects: Any) -> list[Any]:
    return [
        (e.window.end_timestamp, len(e.window), e.window.aggregate) if isinstance(e, Activation) else e.count
        for e in effects
    ]


def manager_of(length: Any, slide: Any, aggregate: Any, **options: Any) -> TimePaneManager | NumberPaneManager:
    return panes_of(WindowConfig(length=length, slide=slide, aggregate=aggregate, **options))


@pytest.mark.parametrize(("slide", "most"), [(10, 950), (5, 1300)])
def test_a_key_takes_few_bytes(slide: int, most: int) -> None:
    keys = range(1000, 3000)
    manager = manager_of(count(10), count(slide), agg.sum(), timestamp="ts", key=("k",))
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for ts in range(12):
        list(manager.add_batch([1] * len(keys), [ts] * len(keys), keys))
        list(manager.advance(ts))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (after - before) / len(keys) < most


def test_a_window_with_an_aggregate_refuses_to_return_tuples():
    manager = manager_of(millis(10), millis(10), agg.count(), timestamp="ts")
    manager.add("a", 3)
    [effect, expired] = [
        (effect, [ask(effect) for ask in (refusal("get"), refusal("get_new"), refusal("get_expired"))])
        if isinstance(effect, Activation)
        else effect
        for effect in manager.advance(10)
    ]
    assert all("use window.aggregate" in sentence for sentence in effect[1])
    assert expired.get() is None
    assert expired.count == 1


def refusal(method: str) -> Any:
    def ask(effect: Activation) -> str:
        with pytest.raises(TypeError) as refused:
            getattr(effect.window, method)()
        return str(refused.value)

    return ask


def test_count_windows_over_the_clock_fire_with_their_last_tuple():
    manager = manager_of(count(3), count(2), agg.sum())
    assert [effects_of(manager.add(value, clock)) for clock, value in enumerate([1, 10, 100, 1000])] == [
        [],
        [(1, 2, 11), 1],
        [],
        [(3, 3, 1110), 2],
    ]


def test_a_tuple_between_two_windows_is_counted_and_never_aggregated():
    def refuse(acc: Any, value: Any) -> Any:
        assert value != "skipped"
        return acc + 1

    counted = agg.fold(int, refuse, lambda a, b: a + b)
    time = manager_of(millis(2), millis(10), counted, timestamp="ts")  # windows (8, 10], (18, 20], ...
    list(time.add_batch(["skipped", "a", "skipped"], [3, 9, 11]))
    assert effects_of(time.advance(10)) == [(10, 1, 1), 2]
    assert effects_of(time.drain()) == [1]
    assert (time.tally.shown, time.tally.skipped) == (1, 2)
    numbers = manager_of(count(1), count(3), counted, timestamp="ts")
    list(numbers.add_batch(["skipped", "skipped", "a", "skipped"], [1, 2, 3, 4]))
    assert effects_of(numbers.advance(9)) == [(3, 1, 1), 4]
    assert (numbers.tally.shown, numbers.tally.skipped) == (1, 3)


@pytest.mark.parametrize("batched", [False, True])
def test_tuples_between_two_windows_expire_each_at_its_own_millisecond(batched):
    # windows (4, 8], (12, 16], ...; W = 2 lies between the tuples of one pane
    manager = manager_of(millis(4), millis(8), agg.count(), timestamp="ts")
    if batched:
        list(manager.add_batch(["a", "b", "c"], [3, 1, 5]))
    else:
        for payload, ts in (("a", 3), ("b", 1), ("c", 5)):
            list(manager.add(payload, ts))
    assert [effects_of(manager.advance(watermark)) for watermark in (2, 3, 7, 8)] == [[1], [1], [], [(8, 1, 1), 1]]


def test_the_state_has_partial_results_and_no_tuples():
    manager = manager_of(millis(100), millis(50), {"n": agg.count(), "worst": agg.max("delay")}, timestamp="ts")
    list(manager.add_batch([{"delay": n, "who": "secret"} for n in range(1000)], list(range(1000))))
    saved = json.dumps(manager.snapshot())
    assert "secret" not in saved
    assert len(manager.snapshot()["panes"]) == 21
    counts = manager_of(count(4), count(2), agg.count(), timestamp="ts")
    list(counts.add_batch([{"who": "secret"}], [5]))
    assert "secret" not in json.dumps(counts.snapshot())


Flight = namedtuple("Flight", ["delay", "carrier"])


class Plane:
    delay = 7


def test_values_are_read_from_fields_of_mappings_namedtuples_and_objects_or_are_the_tuple_itself():
    payloads = [{"delay": 3}, Flight(5, "UA"), Plane()]
    aggregation = Aggregation({"sum": agg.sum("delay"), "n": agg.count(), "kinds": agg.count(field=None)})
    assert aggregation.fold(payloads) == {"sum": 15, "n": 3, "kinds": 3}
    assert Aggregation(agg.sum()).fold([1, 2]) == 3
    assert Aggregation(agg.max("carrier")).fold([Flight(1, "AA"), Flight(1, "UA")]) == "UA"


@pytest.mark.parametrize("fields", [(), ("delay",), (None,), ("delay", "carrier"), ("delay", None)])
def test_the_value_of_one_payload_is_that_of_a_batch(fields):
    aggregation = Aggregation({"n": agg.count(), **{str(field): agg.max(field) for field in fields}})
    payloads = [{"delay": 3, "carrier": "AA"}, Flight(5, "UA"), {"delay": 4, "carrier": None, "other": 1}]
    assert [aggregation.value(payload) for payload in payloads] == list(aggregation.values(payloads))


def test_a_tuple_without_the_aggregated_field_is_refused_and_changes_nothing():
    manager = manager_of(millis(10), millis(10), agg.sum("delay"), timestamp="ts")
    manager.add({"delay": 1}, 3)
    saved = manager.snapshot()
    for add in (manager.add, lambda payload, at: manager.add_batch([{"delay": 2}, payload], [4, at])):
        said = "aggregate= of bolt 'bolt' reads the field 'delay', which a tuple does not have: 'delay'; name one of its fields"
        with pytest.raises(ConfigError, match=said):
            add({"delya": 3}, 5)
        assert manager.snapshot() == saved
        manager.check()


def test_a_bolt_that_modifies_a_result_does_not_change_the_partials():
    def append(acc: list[Any], value: Any) -> list[Any]:
        acc.append(value)
        return acc

    manager = manager_of(millis(10), millis(5), agg.fold(list, append, lambda a, b: a + b), timestamp="ts")
    list(manager.add_batch(["a", "b"], [4, 9]))
    kept = []
    for effect in manager.drain():
        if isinstance(effect, Activation):
            kept.append(effect.window.aggregate)
            kept[-1].append("changed")
    assert kept == [["a", "changed"], ["a", "b", "changed"], ["b", "changed"]]


def test_a_snapshot_shares_no_objects_with_the_machine():
    def append(acc: list[Any], value: Any) -> list[Any]:
        acc.append(value)
        return acc

    manager = manager_of(millis(10), millis(10), agg.fold(list, append, lambda a, b: a + b), timestamp="ts")
    manager.add("a", 1)
    saved = manager.snapshot()
    manager.add("b", 2)
    other = manager_of(millis(10), millis(10), agg.fold(list, append, lambda a, b: a + b), timestamp="ts")
    other.restore(saved)
    other.add("c", 3)
    assert [effect.window.aggregate for effect in other.drain() if isinstance(effect, Activation)] == [["a", "c"]]
    assert json.dumps(saved["panes"]) == '[[10, 0, [null], [[1], [["a"]]]]]'


def test_a_snapshot_of_other_aggregators_is_refused():
    manager = manager_of(millis(10), millis(10), agg.sum("delay"), timestamp="ts")
    other = manager_of(millis(10), millis(10), agg.sum("distance"), timestamp="ts")
    with pytest.raises(SnapshotError, match="same definition"):
        other.restore(manager.snapshot())
    with pytest.raises(SnapshotError, match="a TimePaneManager snapshot"):
        other.restore(WindowManager(other.config).snapshot())


def test_an_out_of_order_batch_is_added_in_one_call_per_pane():
    calls = []

    class Counting:
        field = None

        def init(self) -> int:
            return 0

        def add(self, acc: int, value: int) -> int:
            raise AssertionError("a batch is added in runs")

        def add_many(self, acc: int, values: Any) -> int:
            calls.append(len(values))
            return acc + sum(values)

        def merge(self, a: int, b: int) -> int:
            return a + b

        def result(self, acc: int) -> int:
            return acc

    manager = manager_of(millis(20), millis(10), Counting(), timestamp="ts")
    list(manager.add_batch([1] * 40_000, [n * 7919 % 40 for n in range(40_000)]))
    # Timestamp 0 is the pane that ends at 0; then (0, 10], (10, 20], (20, 30], and 31..39.
    assert sorted(calls) == [1000, 9000, 10000, 10000, 10000]
    sizes = [e[1] for e in effects_of(manager.drain()) if isinstance(e, tuple)]
    assert sizes == [1000, 11000, 20000, 20000, 19000, 9000]


@pytest.mark.parametrize(
    ("length", "slide", "options", "kind"),
    [
        (Duration(10), Duration(5), {}, "TimePaneManager"),
        (Count(10), Count(5), {}, "NumberPaneManager"),
        (Duration(10), Count(5), {}, "WindowManager"),
        (Count(10), Duration(5), {}, "WindowManager"),
        (Count(10), Count(5), {"aggregate": None}, "WindowManager"),
        (Count(10), None, {"trigger": lambda: None}, "PolicyWindowManager"),
        (Count(10), Count(5), {"aggregate": None, "eviction": lambda: None}, "PolicyWindowManager"),
        (Count(10), Count(5), {"aggregate": None, "semantics": "storm"}, "StormMachine"),
    ],
)
def test_the_machine_is_chosen_by_the_definition(length, slide, options, kind):
    given = {"length": length, "slide": slide, "timestamp": "ts", "aggregate": agg.count(), **options}
    assert type(machine_for(WindowConfig.of(**given))).__name__ == kind
    assert isinstance(WindowedBoltExecutor(WindowConfig.of(**given)).counts(), dict)


def test_panes_need_two_measures_of_one_kind():
    with pytest.raises(ConfigError, match="two Counts"):
        manager_of(count(3), millis(5), agg.count())
    with pytest.raises(ConfigError, match="two Durations"):
        manager_of(millis(5), count(3), agg.count())


def test_over_the_clock_a_key_of_count_windows_past_its_ttl_is_drained():
    options = {"length": count(3), "slide": count(2), "key": "k", "key_ttl": millis(10), "aggregate": agg.sum()}
    config = WindowConfig.of(**options)
    for manager in (panes_of(config), over_windows(config)):
        list(manager.add_batch([1, 10, 100], [5, 6, 7], ["a", "a", "a"]))
        assert effects_of(manager.tick(17)) == []
        assert effects_of(manager.tick(18)) == [(7, 2, 110), 2]
        assert manager.tally.pending == 0
        assert manager.snapshot()["tracks"] == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, r"declares no aggregate=; use window\.get\(\), or declare"),
        ({"trigger": lambda: CountTriggerPolicy(2)}, r"declares no aggregate=; use window\.get\(\), or declare"),
        (
            {"semantics": "storm"},
            r"Storm's windows have no aggregate; use window\.get\(\), or aggregate= with semantics=.lossless",
        ),
    ],
)
def test_the_aggregate_of_a_window_without_one_is_refused_with_what_its_bolt_can_do(options, sentence):
    slide = {} if "trigger" in options else {"slide": count(2)}
    executor = WindowedBoltExecutor(WindowConfig.of(length=count(2), timestamp="ts", **slide, **options))
    executor.add_batch(["a", "b"], [1, 2])
    fired = 0
    for effect in executor.turn():
        if isinstance(effect, Activation):
            fired += 1
            with pytest.raises(TypeError, match=sentence):
                _ = effect.window.aggregate
    assert fired == 1


def test_an_advance_does_not_visit_panes_that_wait_for_their_windows():
    class Pending(set[int]):
        def __iter__(self):
            raise AssertionError("all panes are visited")

    config = WindowConfig.of(length=millis(10), slide=millis(10), timestamp="ts", aggregate=agg.sum())
    manager = TimePaneManager(config)
    list(manager.add_batch(range(100), [10 * n + 1 for n in range(100)]))
    manager._touched = Pending(manager._touched)
    advances = (effect for until in range(10, 100, 10) for effect in manager.advance(until))
    assert [effect.window.aggregate for effect in advances if isinstance(effect, Activation)] == list(range(9))
    assert len(manager._touched) == len(manager._next_touched) == 91
