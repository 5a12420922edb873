"""Windows in memory in LocalCluster against the model: the windows, and which messages are acked and which are given up."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from tests.windows.lossless_model import run_model
from windowing import millis, windowed_bolt
from windowing.errors import FailedException
from windowing.local.clock import VirtualClock
from windowing.local.cluster import LocalCluster
from windowing.testing.replay import config_of
from windowing.testing.strategies import windows
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import Spout
from windowing.topology.decorators import bolt, spout
from windowing.windows.config import SkippedTuplesWarning


@dataclass
class Heard:
    """What a spout has emitted, as (id, key, time), and what became of its messages."""

    emitted: list[tuple[int, str, int]] = field(default_factory=list)
    acked: list[int] = field(default_factory=list)
    given_up: list[int] = field(default_factory=list)


def timed(rows: list[tuple[int, str]], clock: VirtualClock, heard: Heard) -> Any:
    """A spout that emits each (gap, key) so many milliseconds after the one before it."""

    @spout(output="id long, key string")
    class Timed(Spout):
        def next_tuple(self) -> None:
            left = rows[len(heard.emitted) :]
            for id, (_, key) in enumerate(left, len(heard.emitted)):
                heard.emitted.append((id, key, clock.now_ms()))
                self.collector.emit((id, key), message_id=id)
                gap = rows[id + 1][0] if id + 1 < len(rows) else 1
                if gap:
                    return self.collector.sleep(millis(gap))

        def ack(self, message_id: int) -> None:
            heard.acked.append(message_id)

        def give_up(self, message_id: int) -> None:
            heard.given_up.append(message_id)

    return Timed


def events_of(case: dict[str, Any], heard: Heard, until: int) -> tuple[list[list[Any]], list[list[Any]]]:
    """The events of the model, each with its time, whose clock ticks each millisecond; then those of a drain, apart."""
    timed: list[tuple[int, list[Any]]] = []
    for now in range(until + 1):
        adds = [["add", id, {"key": key}] for id, key, at in heard.emitted if at == now]
        timed += [(now, op) for op in (["clock", now], ["tick"], *adds)]
    events = run_model({**case, "ops": [*(op for _, op in timed), ["drain"]]}).events
    before = [[timed[op][0], *event] for op, *event in events if op < len(timed)]
    return before, [[until, *event] for op, *event in events if op == len(timed)]


def windows_of_ids(case: dict[str, Any]) -> Any:
    """Return a decorator for a bolt over the windows of a case; a failed window fails its tuples."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkippedTuplesWarning)
        config = config_of(case)
        ttl = {} if config.key_ttl_ms is None else {"key_ttl": millis(config.key_ttl_ms)}
        return windowed_bolt(
            config.length,
            config.slide,
            key="key" if case["keyed"] else None,
            on_error="fail",
            output="ids array<long>, new array<long>, old array<long>, until long, now long",
            **ttl,
        )


def fails_on(ids: list[int]) -> bool:
    return sum(ids) % 3 == 0


@given(
    window=windows(),
    key_ttl=st.sampled_from([None, 2, 8]),
    keyed=st.booleans(),
    rows=st.lists(st.tuples(st.sampled_from([0, 1, 3, 9]), st.sampled_from("ab")), max_size=14),
    failing=st.sampled_from(["no window", "a window", "its output"]),
    ackers=st.integers(1, 2),
)
# As its key ends:
@example({"length": {"count": 2}, "slide": {"count": 2}}, 2, True, [(0, "a"), (3, "a")], "no window", 1)
def test_a_message_is_acked_when_it_expires_unless_a_window_that_held_it_or_its_output_failed(
    window, key_ttl, keyed, rows, failing, ackers
):
    case = {**window, "event_time": None, "semantics": "lossless", "clock_start_ms": 0, "keyed": keyed}
    if keyed and key_ttl and ("count" in window["length"] or "count" in window["slide"]):
        case["key_ttl_ms"] = key_ttl
    heard, clock = Heard(), VirtualClock()

    @windows_of_ids(case)
    def shown(window):
        parts = [[row["id"] for row in part] for part in (window.get(), window.get_new(), window.get_expired())]
        if failing == "a window" and fails_on(parts[0]):
            raise FailedException("the window")
        return *parts, window.end_timestamp, clock.now_ms()

    @bolt(output="n long")
    def checked(row):
        if failing == "its output" and fails_on(row["ids"]):
            raise FailedException("its output")

    builder = TopologyBuilder("acks").configure(max_attempts=1, enable_message_timeouts=False, acker_executors=ackers)
    builder.set_spout("source", timed(rows, clock, heard))
    builder.set_bolt("shown", shown).shuffle_grouping("source")
    builder.set_bolt("checked", checked).shuffle_grouping("shown")
    with LocalCluster(builder.build(), clock=clock, outputs=["shown"]) as cluster:
        cluster.run_for(millis(sum(gap for gap, _ in rows) + 20))
        until, acked_before = clock.now_ms(), sorted(heard.acked)
        cluster.drain()
        found = [list(row) for row in cluster.result["shown"]]

    before, in_drain = events_of(case, heard, until)
    fired = [[*window, now] for now, kind, *window in before + in_drain if kind == "activate"]
    expired = {id for event in before if event[1] == "expire" for id in event[2]}
    failed = {id for ids, *_ in fired if failing != "no window" and fails_on(ids) for id in ids}
    assert found == [each for each in fired if not (failing == "a window" and fails_on(each[0]))]
    assert acked_before == sorted(expired - failed)
    assert sorted(heard.given_up) == sorted(failed)
    assert sorted(heard.acked) == sorted({id for id, _, _ in heard.emitted} - failed)
    assert len(heard.emitted) == len(rows)
