"""A FailedException in a window: its tuples fail, on Spark as on LocalCluster, unless on_error of the bolt decides otherwise."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.execution.chains import Chain
from tests.execution.test_chain_acks import Acking, one_bolt
from tests.execution.test_task_metrics import Totals
from windowing.errors import BoltError, FailedException, ReportedFailedException
from windowing.local.clock import VirtualClock
from windowing.local.cluster import LocalCluster, run_topology
from windowing.local.metrics import ClusterMetrics
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import Bolt, InputSpout
from windowing.topology.decorators import bolt, sliding, tumbling
from windowing.windows.measures import millis

ROWS = [(13, 3), (1, 12), (1, 22)]
"""The window (0, 10] contains the unlucky one, (10, 20] the next; the third waits."""


def picky(error: type[Exception] = FailedException, **options: Any) -> Any:
    @tumbling(millis(10), timestamp="at", output="n long", **options)
    def unlucky(window: Any) -> Any:
        if any(t.n == 13 for t in window):
            raise error("unlucky")
        return len(window)

    return unlucky


def test_by_default_a_failed_exception_fails_the_windows_tuples_to_their_spout() -> None:
    run = Acking(one_bolt(picky()))
    assert run.run({"in": ROWS}) == [(0, 0, "bolt")]
    assert run.out["bolt"] == [(1,)], "the other window fires"
    assert run.run({"in": [(1, 40)]}) == [(0, 1, None)], "and the failed root is not acked later"

    result = run_topology(one_bolt(picky()), {"in": [ROWS]}, clock=VirtualClock())
    assert result.failures > 0, "as on LocalCluster"


@pytest.mark.parametrize(
    ("bolt", "told"),
    [(picky(), 0), (picky(ReportedFailedException), 1), (picky(ValueError, on_error="fail"), 1)],
)
def test_a_reported_failed_exception_is_logged_and_reported_too(bolt: Any, told: int, caplog: Any) -> None:
    assert Acking(one_bolt(bolt)).run({"in": ROWS}) == [(0, 0, "bolt")]
    assert [record.getMessage().count("unlucky") for record in caplog.records] == [1] * told
    result = run_topology(one_bolt(bolt, **{"windowing.max.attempts": 1}), {"in": [ROWS]}, clock=VirtualClock())
    assert len(result.errors) == told, "as on LocalCluster"


@bolt(output="n long, at long")
class HalfAnchored(Bolt):
    """Emits odd numbers with an anchor, and even ones without."""

    def execute(self, tuple: Any) -> None:
        self.collector.emit((tuple.n, tuple.at), anchors=tuple if tuple.n % 2 else ())
        self.collector.ack(tuple)


@bolt(output="error string, tuples string")
def letters(tuple: Any) -> Any:
    return tuple.error, tuple.tuples


def test_tuples_of_a_failed_window_that_no_spout_sends_again_become_a_dead_letter() -> None:
    made = TopologyBuilder("half").configure(
        {"topology.enable.message.timeouts": False, "windowing.max.attempts": 1, "windowing.retry.delay.ms": 0}
    )
    made.set_spout("in", InputSpout("n long, at long"))
    made.set_bolt("half", HalfAnchored).global_grouping("in")
    made.set_bolt("bolt", picky(ValueError, on_error="fail")).global_grouping("half")
    made.set_bolt("letters", letters).global_grouping("bolt", stream="dead_letters")
    topology = made.build()
    rows = [(13, 3), (2, 4), (1, 5), (4, 6), (1, 22), (1, 40)]
    run = Acking(topology)
    assert run.run({"in": rows}) == [(0, 0, "bolt")]
    ((error, tuples),) = run.out["letters"]
    assert [row["n"] for row in json.loads(tuples)] == [2, 4]
    assert "unlucky" in error
    result = run_topology(topology, {"in": [rows]}, clock=VirtualClock())
    (of_window,) = [row for row in result["letters"] if len(json.loads(row[1])) > 1]
    assert (of_window[0], [row["n"] for row in json.loads(of_window[1])]) == (error, [2, 4]), "as on LocalCluster"


def test_the_error_of_a_skipped_window_is_logged_and_reported_too(caplog: Any) -> None:
    topology = one_bolt(picky(on_error="skip"))
    chain = Chain(topology)
    chain.channel = Totals()
    chain.run({"in": ROWS})
    (said,) = {record.getMessage() for record in caplog.records if record.getMessage().startswith("task 0: ")}
    assert "unlucky" in said
    assert said.endswith("; it is skipped")
    found = chain.channel.totals.now(0).components()["bolt"]
    assert (found.reported, found.errors[0].count("unlucky")) == (1, 1)
    result = run_topology(topology, {"in": [ROWS]}, clock=VirtualClock())
    assert len(result.errors) == 1, "as on LocalCluster"


def test_of_the_windows_that_fail_in_a_batch_only_the_first_are_logged(caplog: Any) -> None:
    run = Acking(one_bolt(picky(ValueError, on_error="fail")))
    run.run({"in": [*((13, 10 * window) for window in range(100)), (1, 1_000)]})
    assert sum("its tuples fail" in record.getMessage() for record in caplog.records) == 8


def test_any_other_error_ends_the_query_as_it_ends_local_cluster() -> None:
    topology = one_bolt(picky(ValueError))
    with pytest.raises(BoltError, match=r"'bolt' failed.*ValueError.*unlucky"):
        Chain(topology, acks=True).run({"in": ROWS})
    with pytest.raises(BoltError, match=r"'bolt' failed.*ValueError.*unlucky"):
        run_topology(topology, {"in": [ROWS]}, clock=VirtualClock())


def test_on_error_applies_to_a_failed_exception_too() -> None:
    run = Acking(one_bolt(picky(on_error="skip")))
    assert run.run({"in": [*ROWS[:2]]}) == []
    assert run.run({"in": [(1, 45)]}) == [(0, 0, None)], "acked: it was dealt with"
    run = Acking(one_bolt(picky(on_error="dead_letter")))
    run.run({"in": ROWS})
    assert [letter[0] for letter in run.out["bolt.dead_letters"]] == ["bolt"]
    assert run_topology(one_bolt(picky(on_error="skip")), {"in": [ROWS]}, clock=VirtualClock()).failures == 0


def test_without_a_spout_that_takes_acks_the_error_names_the_fix() -> None:
    with pytest.raises(BoltError, match=r"'bolt' failed.*unlucky.*none of its spouts takes acks: give submit.*'skip'"):
        Chain(one_bolt(picky())).run({"in": ROWS})


@sliding(millis(20), millis(10), timestamp="at", output="n long")
def of_two(window: Any) -> Any:
    """Each tuple is in two windows."""
    if any(t.n == 13 for t in window):
        raise FailedException("unlucky")
    return len(window)


@pytest.mark.parametrize("drain", [False, True])
def test_a_failed_tuple_counts_once_and_is_not_acked_when_it_expires_in_a_later_batch(drain: bool) -> None:
    batches = [[(13, 3), (13, 4), (1, 5), (1, 12)], [(1, 14), (1, 15)], [(1, 26)], [(13, 45)], [(1, 99)]]
    topology = one_bolt(of_two, **{"windowing.max.attempts": 1})
    run = Acking(topology)
    run.chain.channel = Totals()
    with LocalCluster(topology, batches={"in": []}, clock=VirtualClock()) as cluster:
        metrics = ClusterMetrics(cluster)
        for batch in batches:
            run.run({"in": batch})
            cluster.run_batch({"in": batch})
            assert counted(run.chain.channel.totals.now(0)) == counted(metrics.now())
        if drain:
            run.run({}, drain=True)
            cluster.drain()
    spark, local = counted(run.chain.channel.totals.now(0)), counted(metrics.now())
    assert spark == local == ((2, 7) if drain else (1, 7))


def counted(found: Any) -> tuple[int, int]:
    bolt = found.components()["bolt"]
    return bolt.acked, bolt.failed
