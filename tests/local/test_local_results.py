"""A bolt in one process gives the rows, streams and types that it gives on Spark; misuse is refused."""

from __future__ import annotations

import json
from collections import Counter, namedtuple
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windowing import count, millis, seconds, sliding, tumbling, windowed_bolt
from windowing.errors import BoltError, ConfigError
from windowing.local import LocalRun, run_local
from windowing.windows import aggregate as agg

Word = namedtuple("Word", "word at")


@pytest.mark.parametrize("key", ["origin", "flight no", "class"])
def test_a_bolt_reads_a_field_of_any_name(key: str) -> None:
    row = {"at": 1, "origin": "JFK", "flight no": 7, "class": "first"}

    @tumbling(count(1), timestamp=lambda row: row["at"] + row.at, key=key, source=key, output="text string, n long")
    def read(window: Any) -> Any:
        (row,) = window
        assert row.origin == row["origin"] == "JFK"
        return str(row[key]), row["flight no"]

    assert run_local(read, [[row]])["default"] == [(str(row[key]), 7)]


@pytest.mark.parametrize("length", [count(2), seconds(1)])
def test_an_aggregate_reads_a_field_with_a_blank_in_its_name(length: Any) -> None:
    @windowed_bolt(length, count(2), timestamp="at", aggregate=agg.sum("flight no"), output="n long")
    def total(window: Any) -> int:
        return window.aggregate

    rows = [{"at": 1, "flight no": 3}, {"at": 1, "flight no": 4}]
    assert run_local(total, [rows])["default"] == [(7,)]


def test_a_value_of_the_wrong_type_is_an_error_in_one_process_too() -> None:
    def bolt(on_error: str) -> Any:
        @tumbling(count(1), timestamp="at", on_error=on_error, output="n long")
        def wordy(window: Any) -> Any:
            return "text" if next(iter(window)).at == 1 else window.end_timestamp

        return wordy

    rows = [[{"at": 1}, {"at": 2}]]
    with pytest.raises(
        BoltError, match=r"bolt 'wordy' .*end=1.*field 'n' .* bigint: got 'text'.*test_local_results.py:"
    ):
        run_local(bolt("raise"), rows)
    result = run_local(bolt("skip"), rows)
    assert (result["default"], result.failures) == ([(2,)], 1)
    assert len(run_local(bolt("dead_letter"), rows)["dead_letters"]) == 1


def test_the_result_has_the_late_stream_and_the_dead_letters_as_streams() -> None:
    @tumbling(count(1), timestamp="at", late_stream="late", on_error="dead_letter", key="word", output="n long")
    def picky(window: Any) -> int:
        raise ValueError("no")

    result = run_local(picky, [[{"word": "a", "at": 5}], [{"word": "b", "at": 1}]])
    assert result["late"] == [("b", 1, "late")]
    assert [name for name in result if result[name]] == ["late", "dead_letters"]
    ((bolt, task, _, error, start, end, key, tuples),) = result["dead_letters"]
    assert (bolt, task, start, end, key) == ("picky", 0, None, 5, "a")
    assert "ValueError: no" in error
    assert json.loads(tuples) == [{"word": "a", "at": 5}]


def test_an_unknown_stream_of_the_result_is_refused() -> None:
    @tumbling(count(1), timestamp="at", late_stream="late", output="n long")
    def size(window: Any) -> int:
        return len(window)

    result = run_local(size, [[Word("a", 1)]])
    assert list(result) == ["default", "late"]
    for stream in ("dead_letters", "lat", 3):
        with pytest.raises(ConfigError, match=r"there is no stream .*result\.dead_letters"):
            result[stream]  # type: ignore[index]


@tumbling(count(1), timestamp="at", output="n long")
def size_of(window: Any) -> int:
    return len(window)


@pytest.mark.parametrize("batches", [[{"at": 1}, {"at": 2}], ["abc"], [Word("a", 1)], [3], [{"default": {"at": 1}}]])
def test_a_list_of_rows_in_place_of_batches_is_refused(batches: Any) -> None:
    with pytest.raises(ConfigError, match=r"run_local takes a list of batches, .*write "):
        run_local(size_of, batches)


@pytest.mark.parametrize("rows", ["abc", {"at": 1}, Word("a", 1), 3])
def test_a_single_row_in_place_of_rows_is_refused(rows: Any) -> None:
    with pytest.raises(ConfigError, match="feed takes rows, got "):
        LocalRun(size_of).feed(rows)


def test_batches_in_place_of_the_rows_of_one_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"feed takes the rows of one batch, got a list of batches, .*\[\{'at': 1\}\]; call feed"
    ):
        LocalRun(size_of).feed([[{"at": 1}], [{"at": 2}]])


def test_batches_may_be_any_iterables_of_rows() -> None:
    assert run_local(size_of, iter([iter([{"at": 1}]), ({"at": 2},)]))["default"] == [(1,), (1,)]


def failing(length: int, slide: int) -> Any:
    @sliding(count(length), count(slide), timestamp=lambda row: 1, on_error="fail", output="n long")
    def picky(window: Any) -> None:
        if 2 in list(window):
            raise ValueError("no")

    return picky


def test_a_row_object_fails_as_often_as_it_was_fed() -> None:
    result = run_local(failing(3, 3), [[1, 2, 2, 3, 4]])
    assert (result.failed, result.acked) == ([1, 2, 2], 2)
    again = run_local(failing(1, 1), [[2, 2, 1, 2]])
    assert (again.failed, again.acked) == ([2, 2, 2], 1)


def test_only_keys_with_failed_tuples_are_remembered_for_on_error_fail() -> None:
    @sliding(millis(2_000), millis(500), timestamp="at", key="k", on_error="fail", output="n long")
    def picky(window: Any) -> int:
        if window.key == 3:
            raise ValueError("no")
        return len(window)

    run = LocalRun(picky)
    run.feed([{"at": 20 * key, "k": key} for key in range(50)])
    run.turn()
    assert run.result.failed[0]["k"] == 3
    failed = run._failed
    assert failed is not None
    assert list(failed._shown) == [3]
    run.feed([{"at": 10_000, "k": 50}])
    run.turn()
    assert (failed._shown, failed._failed) == ({}, {}), "its tuples have expired"


@pytest.mark.filterwarnings("ignore::windowing.windows.config.SkippedTuplesWarning")
@given(st.lists(st.lists(st.integers(1, 3), max_size=6), max_size=4), st.integers(1, 4), st.integers(1, 4))
def test_shared_row_objects_fail_as_often_as_distinct_ones(batches: Any, length: int, slide: int) -> None:
    class Own:
        def __init__(self, value: int) -> None:
            self.value = value

        def __eq__(self, other: object) -> bool:
            return self.value == other

        __hash__ = None  # type: ignore[assignment]

    shared = run_local(failing(length, slide), batches)
    own = run_local(failing(length, slide), [[Own(value) for value in batch] for batch in batches])
    assert Counter(shared.failed) == Counter(each.value for each in own.failed)
    assert (shared.acked, shared.counts) == (own.acked, own.counts)


WIDE = Context(prec=100)
amounts = st.integers(-(10**36), 10**36).map(lambda cents: Decimal(cents).scaleb(-2, WIDE))


@pytest.mark.parametrize("columnar", [None, "arrow"])
@given(
    rows=st.lists(st.tuples(st.integers(0, 12), st.sampled_from("ab"), amounts), max_size=14).map(sorted),
    size=st.integers(1, 5),
)
def test_sums_of_decimals_in_sliding_windows_are_exact(
    columnar: Any, rows: list[tuple[int, str, Decimal]], size: int
) -> None:
    @sliding(
        millis(4),
        millis(1),
        timestamp="at",
        lag=millis(1),
        key="k",
        aggregate={"total": agg.sum("v"), "mean": agg.mean("v")},
        columnar=columnar,
        output="k string, end long, total decimal(38,2), mean string",
    )
    def totals(window: Any) -> Any:
        found = window.aggregate.to_pylist() if columnar else [{"k": window.key, **window.aggregate}]
        return [(each["k"], window.end_timestamp, each["total"], str(each["mean"])) for each in found]

    wanted = {}
    for end in range(16):
        for key in "ab":
            inside = [Fraction(amount) for at, k, amount in rows if k == key and end - 4 < at <= end]
            if inside:
                wanted[key, end] = sum(inside), sum(inside) / len(inside)
    given_rows = [{"at": at, "k": key, "v": amount} for at, key, amount in rows]
    result = run_local(totals, [given_rows[n : n + size] for n in range(0, len(rows), size)])
    found = {(key, end): (Fraction(total), Decimal(mean)) for key, end, total, mean in result["default"]}
    assert {at: total for at, (total, _) in found.items()} == {at: total for at, (total, _) in wanted.items()}
    for at, (total, mean) in found.items():
        digits = 38 if len(total.numerator.__str__()) > 26 else 28
        assert abs(Fraction(mean) - wanted[at][1]) <= Fraction(10) ** (mean.adjusted() + 1 - digits), (at, mean)
