"""Errors that are reported and end nothing are in the result and in the log, for every kind of component."""

from __future__ import annotations

import logging
from traceback import walk_tb

import pytest

from windowing import FailedException, InputSpout, ReportedFailedException, TopologyBuilder, bolt, count, tumbling
from windowing.local import VirtualClock, run_topology
from windowing.local.trident_cluster import TridentCluster, run_trident
from windowing.topology.components import Spout
from windowing.topology.decorators import spout
from windowing.trident.coordinator import Readiness
from windowing.trident.kinds import SpoutKind
from windowing.trident.spouts import FixedBatchSpout, IBatchSpout
from windowing.trident.streams import TridentTopology
from windowing.trident.subtopology import TridentRun


def run(topology):
    return run_trident(topology, clock=VirtualClock())


def reported(result):
    return [(found.component, found.task, str(found.error)) for found in result.errors]


@pytest.fixture
def logged(caplog):
    caplog.set_level(logging.WARNING, "windowing")
    return lambda: [record.getMessage() for record in caplog.records if "reports" in record.getMessage()]


def failing_once(kind):
    calls = []

    def step(row):
        calls.append(row.n)
        if len(calls) == 1:
            raise kind(f"no luck with {row.n}")
        return (row.n,)

    return step


def stream_of(rows=((1,), (2,))):
    topology = TridentTopology("told")
    return topology, topology.new_stream("numbers", FixedBatchSpout("n long", 2, list(rows)))


def test_an_operation_that_raises_reported_failed_exception_is_in_the_result_and_in_the_log(logged):
    topology, stream = stream_of()
    stream.each("n", failing_once(ReportedFailedException), "m long").sink("out")
    result = run(topology)
    assert (result.failures, result["out"]) == (1, [(1, 1), (2, 2)])
    ((component, task, error),) = reported(result)
    assert (task, error.endswith("no luck with 1")) == (0, True)
    (line,) = logged()
    assert repr(component) in line
    assert "ReportedFailedException" in line


class TellsAndFails:
    def __init__(self):
        self.fail = failing_once(ReportedFailedException)

    def execute(self, tuple, collector):
        collector.report_error(ValueError(f"n is {tuple.n}"))
        self.fail(tuple)


def test_the_failure_of_an_attempt_is_reported_after_the_errors_that_its_operations_have_reported_before(logged):
    topology, stream = stream_of()
    stream.each("n", TellsAndFails(), "m long").sink("out")
    errors = [error for _, _, error in reported(run(topology))]
    assert errors == ["n is 1", "[REPORTED] no luck with 1", "n is 1", "n is 2"]
    assert len(logged()) == 4


def test_an_operation_that_raises_failed_exception_reports_nothing(logged):
    topology, stream = stream_of()
    stream.each("n", failing_once(FailedException), "m long").sink("out")
    result = run(topology)
    assert (result.failures, result.errors, logged()) == (1, [], [])


class ThenTells:
    """Each kind of operation that gets a collector."""

    def execute(self, tuple, collector):
        collector.report_error(ValueError(f"each {tuple.n}"))
        collector.emit((tuple.n,))

    def init(self, batch_id, collector):
        return []

    def aggregate(self, value, tuple, collector):
        collector.report_error(ValueError(f"aggregate {tuple.n}"))
        value.append(tuple.n)

    def complete(self, value, collector):
        collector.emit((sum(value),))


@pytest.mark.parametrize("kind", ["each", "aggregate", "window"])
def test_report_error_of_an_operations_collector_stops_nothing(kind, logged):
    topology, stream = stream_of()
    if kind == "each":
        out = stream.each("n", lambda tuple, collector: ThenTells().execute(tuple, collector), "m long")
    elif kind == "aggregate":
        out = stream.aggregate("n", ThenTells(), "m long")
    else:
        out = stream.tumbling_window(count(2), "n", ThenTells(), "m long")
    out.sink("out")
    result = run(topology)
    expected = [f"{'each' if kind == 'each' else 'aggregate'} {n}" for n in (1, 2)]
    assert result.batches >= 1
    assert [error for _, _, error in reported(result)] == expected
    assert len(logged()) == 2
    plain = TridentRun(topology.build())
    plain.batch({"numbers": [1, 2]}, now_ms=0)
    assert [str(error) for error in plain.errors] == expected


def test_a_request_that_fails_and_reports_is_in_the_result(logged):
    topology = TridentTopology("asked")

    def refuse(row):
        raise ReportedFailedException(f"no answer to {row.args}")

    topology.new_drpc_stream("ask").each("args", refuse, "answer string").project("answer")
    with TridentCluster(topology, clock=VirtualClock()) as cluster:
        with pytest.raises(FailedException, match="no answer to me"):
            cluster.ask("ask", "me")
        assert [error for _, _, error in reported(cluster.result)] == [
            str(ReportedFailedException("no answer to me")),
        ]
    assert len(logged()) == 1


@spout(output="n long")
class TellsOften(Spout):
    """Reports an error in open, in next_tuple, in ack and in fail."""

    def open(self, context, collector):
        super().open(context, collector)
        self.left = [1, 2]
        collector.report_error(ValueError("open"))

    def next_tuple(self):
        if self.left:
            self.collector.report_error(ValueError("next_tuple"))
            self.collector.emit((self.left.pop(0),), message_id="m")

    def ack(self, message_id):
        self.collector.report_error(ValueError("ack"))

    def fail(self, message_id):
        self.collector.report_error(ValueError("fail"))
        self.left = [1, 2]


def test_errors_that_a_spout_of_tuples_reports_in_any_method_are_in_the_result(logged):
    topology = TridentTopology("told")
    topology.new_stream("numbers", TellsOften).each("n", failing_once(FailedException), "m long").sink("out")
    result = run(topology)
    assert {place for place, _, _ in reported(result)} == {"numbers"}
    assert {error for _, _, error in reported(result)} == {"open", "next_tuple", "ack", "fail"}
    assert logged()[0] == "component 'numbers', task 0, reports ValueError: open"


class TellsInBatches(IBatchSpout):
    kind = SpoutKind.TRANSACTIONAL
    output = "n long"

    def __init__(self):
        self.failed = False

    def open(self, context):
        context.report_error(ValueError("opened"))

    def is_ready(self, txid):
        return Readiness.READY if txid == 1 else Readiness.ENDED

    def emit_batch(self, txid, collector):
        collector.report_error(ValueError(f"batch {txid}"))
        if not self.failed:
            self.failed = True
            raise ReportedFailedException("not yet")
        collector.emit((txid,))


def test_errors_that_a_spout_of_batches_reports_are_in_the_result(logged):
    topology = TridentTopology("told")
    topology.new_stream("numbers", TellsInBatches()).sink("out")
    result = run(topology)
    assert result["out"] == [(1,)]
    errors = [error for _, _, error in reported(result)]
    assert errors.count("batch 1") == 2
    assert "opened" in errors
    assert any(error.endswith("not yet") for error in errors)
    assert len(logged()) == len(errors)


def test_a_topology_logs_reported_errors_too(logged):
    @bolt(output="n long")
    def picky(tuple):
        if tuple["n"] == 1:
            raise ReportedFailedException("not this one")
        return tuple["n"]

    builder = TopologyBuilder("told").configure(max_attempts=1)
    builder.set_spout("in", InputSpout("n long"))
    builder.set_bolt("picky", picky).shuffle_grouping("in")
    result = run_topology(builder.build(), {"in": [[(1,), (2,)]]}, clock=VirtualClock())
    assert [found.component for found in result.errors] == ["picky"]
    (line,) = logged()
    assert line.startswith("component 'picky', task 0, reports ReportedFailedException: ")


def test_the_error_of_a_skipped_window_keeps_its_lines_and_not_the_tuples_of_the_window():
    @tumbling(count(2), timestamp="n", on_error="skip", output="n long")
    def picky(window):
        held = window.get()
        try:
            raise KeyError(len(held))
        except KeyError:
            for row in held:
                yield 4 // (row.n - 2)

    builder = TopologyBuilder("told")
    builder.set_spout("in", InputSpout("n long"))
    builder.set_bolt("picky", picky).global_grouping("in")
    result = run_topology(builder.build(), {"in": [[(1,), (2,), (3,), (4,)]]}, clock=VirtualClock())
    ((_, _, error),) = result.errors
    division, lookup = error.__cause__, error.__cause__.__context__
    assert (type(division), type(lookup)) == (ZeroDivisionError, KeyError)
    frames = [frame for each in (error, division, lookup) for frame, _ in walk_tb(each.__traceback__)]
    own = [frame for frame in frames if frame.f_code.co_name == "picky"]
    assert len(own) == 2
    assert [name for frame in own for name in frame.f_locals] == []


def test_many_reports_are_all_in_the_result_and_only_some_in_the_log(logged):
    topology, stream = stream_of([(n,) for n in range(100)])
    stream.each("n", lambda tuple, collector: collector.report_error(ValueError(str(tuple.n))), "m long").sink("out")
    result = run(topology)
    assert len(result.errors) == 100
    assert len(logged()) == 5
    assert logged()[-1].endswith("more of it are in the result alone for a while")


def test_an_error_whose_str_raises_is_reported_too(logged):
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    topology, stream = stream_of()
    stream.each("n", lambda tuple, collector: collector.report_error(Mute()), "m long").sink("out")
    assert len(run(topology).errors) == 2
    assert "Mute: (its message cannot be made)" in logged()[0]
