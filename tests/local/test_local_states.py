"""A windowed bolt alone has its state and recognises replayed tuples by their ids, as in a topology."""

from __future__ import annotations

from typing import Any

import pytest

from windowing import Count, bolt_of, seconds, tumbling, windowed_bolt
from windowing.errors import BoltError, ConfigError
from windowing.local.run import LocalRun, run_local
from windowing.topology.user_code import BoltRunner


@tumbling(Count(2), output="n long, total long")
class Totals:
    """Emits the sum of each window and of all windows so far."""

    def init_state(self, state: Any) -> None:
        self.state = state

    def execute(self, window: Any) -> tuple[int, int]:
        n = sum(row.n for row in window)
        total = self.state.get("total", 0) + n
        self.state.put("total", total)
        return n, total


def test_a_stateful_bolt_alone_has_a_state_for_the_whole_run() -> None:
    result = run_local(Totals, [[{"n": 1}, {"n": 2}], [{"n": 3}, {"n": 4}]])
    assert result["default"] == [(3, 3), (7, 10)]
    assert result.state is not None
    assert dict(result.state.items()) == {"total": 10}


def test_the_hooks_of_a_stateful_bolt_alone_are_called_at_the_end_of_each_batch() -> None:
    told: list[Any] = []

    @tumbling(Count(1), output="n long")
    class Hooked:
        def init_state(self, state: Any) -> None:
            told.append("init_state")

        def prepare(self, context: Any) -> None:
            told.append("prepare")

        def execute(self, window: Any) -> int:
            told.append("execute")
            return 1

        def pre_prepare(self, txid: int) -> None:
            told.append(("pre_prepare", txid))

        def pre_commit(self, txid: int) -> None:
            told.append(("pre_commit", txid))

    with LocalRun(Hooked) as run:
        run.feed([{"n": 1}])
        run.turn()
        run.drain()
    batches = [("pre_prepare", 1), ("pre_commit", 1), ("pre_prepare", 2), ("pre_commit", 2)]
    assert told == ["init_state", "prepare", "execute", *batches]


def test_changes_to_the_state_by_a_failed_step_are_rolled_back() -> None:
    @tumbling(Count(1))
    class Fails:
        def init_state(self, state: Any) -> None:
            self.state = state

        def execute(self, window: Any) -> None:
            (row,) = window.get()
            self.state.put("last", row.n)
            if row.n == 2:
                raise ValueError("two")

    run = LocalRun(Fails)
    run.feed([{"n": 1}])
    with pytest.raises(BoltError, match="two"):
        run.feed([{"n": 2}])
    assert run.result.state is not None
    assert run.result.state.get("last") == 1


def test_a_bolt_without_init_state_has_no_state() -> None:
    @tumbling(Count(1), output="n long")
    def total(window: Any) -> int:
        return len(window)

    assert run_local(total, [[{"n": 1}]]).state is None


def test_opening_a_stateful_bolt_without_a_state_is_an_error() -> None:
    with pytest.raises(BoltError, match="'Totals' has init_state, and nobody has handed it a state"):
        BoltRunner(bolt_of(Totals)).open()


def test_init_state_and_the_hooks_are_checked_when_a_windowed_bolt_is_declared() -> None:
    with pytest.raises(ConfigError, match="write def init_state"):

        @tumbling(Count(1))
        class NoArgument:
            def init_state(self) -> None: ...

            def execute(self, window: Any) -> None: ...

    with pytest.raises(ConfigError, match=r"write def pre_commit\(self, txid\)$"):

        @tumbling(Count(1))
        class WrongHook:
            def init_state(self, state: Any) -> None: ...

            def execute(self, window: Any) -> None: ...

            def pre_commit(self) -> None: ...


@windowed_bolt(length=seconds(10), slide=seconds(10), timestamp="at", message_id="id", output="n long")
def count_once(window: Any) -> int:
    return len(window)


def test_a_replayed_row_is_dropped_by_its_message_id() -> None:
    with LocalRun(count_once) as run:
        run.feed([{"at": 1, "id": 1}, {"at": 2, "id": 2}, {"at": 1, "id": 1}])
        run.turn()
        run.feed([{"at": 2, "id": 2}, {"at": 3, "id": 3}])
        run.drain()
    assert run.result["default"] == [(3,)]
    assert run.result.duplicates == 2
    assert run.result.counts["in"] == 3


def test_each_input_stream_has_its_own_message_ids() -> None:
    with LocalRun(count_once, streams=("a", "b")) as run:
        run.feed([{"at": 1, "id": 1}], "a")
        run.feed([{"at": 1, "id": 1}], "b")
        run.drain()
    assert run.result["default"] == [(2,)]


def test_a_row_of_a_refused_feed_is_no_duplicate_when_it_is_fed_again() -> None:
    with LocalRun(count_once) as run:
        with pytest.raises(ConfigError, match="field 'id' is asked for"):
            run.feed([{"at": 1, "id": 1}, {"at": 2}])
        with pytest.raises(ConfigError, match="the message id is None"):
            run.feed([{"at": 1, "id": 1}, {"at": 2, "id": None}])
        run.feed([{"at": 1, "id": 1}, {"at": 2, "id": 2}])
        run.drain()
    assert run.result["default"] == [(2,)]
