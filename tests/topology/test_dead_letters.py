"""Dead letters are on the stream `dead_letters` of their component; the source is notified when their readers are done."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest

from tests.execution.chains import Chain
from tests.execution.test_chain_acks import Acking
from windowing.errors import BoltError, ConfigError, FailedException
from windowing.local.clock import VirtualClock
from windowing.local.cluster import LocalCluster, run_topology
from windowing.local.router import ClusterResult
from windowing.schema.rows import row_of
from windowing.schema.tuples import Fields, Origin, Tuple, is_tick
from windowing.stores.states import MemoryStateProvider
from windowing.testing.invariants import Watch
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import Bolt, InputSpout, Spout
from windowing.topology.dead_letters import DEAD_LETTER_FIELDS, DeadLetter
from windowing.topology.decorators import bolt, spout, tumbling
from windowing.topology.plan import Topology, TopologyError
from windowing.windows.measures import count, seconds


@bolt(output="n long")
def picky(tuple: Any) -> Any:
    if tuple.n < 0:
        raise FailedException("negative")
    return tuple.n


@bolt(output=f"{DEAD_LETTER_FIELDS.ddl}")
def keep(letter: Any) -> Any:
    return letter.get_values()


def topology(source: Any, handler: Any = keep, bolt: Any = picky, stream: str = "picky", **settings: Any) -> Topology:
    builder = TopologyBuilder("letters").configure(**{"max_attempts": 2, "retry_delay": seconds(1), **settings})
    builder.set_spout("source", source)
    builder.set_bolt("picky", bolt).shuffle_grouping("source")
    builder.set_bolt("handler", handler).shuffle_grouping(stream, "dead_letters")
    return builder.build()


def queue(*numbers: int, **methods: Any) -> Any:
    """A spout over numbers that records its acks, fails and give-ups in `heard`."""
    heard: list[tuple[Any, ...]] = []

    class Queue(Spout):
        def open(self, context: Any, collector: Any) -> None:
            self.collector, self.left = collector, list(numbers)

        def next_tuple(self) -> None:
            if self.left:
                self.collector.emit((self.left[0],), message_id=self.left.pop(0))

        def ack(self, message_id: Any) -> None:
            heard.append(("ack", message_id))

        def fail(self, message_id: Any) -> None:
            heard.append(("fail", message_id))
            self.left.append(message_id)

    for name, method in methods.items():
        setattr(Queue, name, method)
    marked: Any = spout(output="n long")(Queue)
    marked.heard = heard
    return marked


def given_up(self: Any, message_id: Any) -> None:
    self.heard.append(("given up", message_id))


def run(plan: Topology) -> ClusterResult:
    with LocalCluster(plan, clock=VirtualClock()) as cluster:
        watch, result = Watch(cluster), cluster.run()
        watch.finish(result.acked + sum(letter.is_message for letter in result.dead_letters))
    return result


@bolt()
class Holding(Bolt):
    """Holds a dead letter until the next tick."""

    def get_component_configuration(self) -> dict[str, Any]:
        return {"topology.tick.tuple.freq.secs": 7}

    def prepare(self, context: Any, collector: Any) -> None:
        self.collector, self.held = collector, []

    def execute(self, tuple: Any) -> None:
        if not is_tick(tuple):
            self.held.append(tuple)
            return
        for letter in self.held:
            type(self).heard.append(("done", json.loads(letter.tuples)[0]["values"]["n"]))
            self.collector.ack(letter)
        self.held = []


def test_a_bolt_reads_the_dead_letters_of_another_bolt() -> None:
    result = run(topology(queue(1, -2, 3)))
    ((component, task, attempts, error, start, end, key, tuples),) = result["handler"]
    assert (component, task, attempts, error) == ("picky", None, 2, "FailedException: [FAILED] negative")
    assert (start, end, key) == (None, None, None)
    assert json.loads(tuples) == [{"component": "source", "stream": "default", "values": {"n": -2}}]
    assert (result["picky"], result.acked, result.failures) == ([(1,), (3,)], 2, 2)
    (letter,) = result.dead_letters
    assert (letter.row(), letter.values, letter.message_id) == (result["handler"][0], (-2,), -2)


def test_give_up_is_called_after_the_readers_of_the_dead_letter_are_done() -> None:
    source = queue(-1, give_up=given_up)
    Holding.heard = source.heard
    run(topology(source, Holding))
    assert source.heard == [("fail", -1), ("done", -1), ("given up", -1)]


def test_a_spout_without_give_up_gets_an_ack_for_a_processed_dead_letter() -> None:
    source = queue(-1)
    Holding.heard = source.heard
    run(topology(source, Holding))
    assert source.heard == [("fail", -1), ("done", -1), ("ack", -1)]


def test_a_dead_letter_that_its_reader_fails_is_retried_like_a_message() -> None:
    tries: list[int] = []

    @bolt()
    def stubborn(letter: Any) -> None:
        tries.append(letter.attempts)
        raise FailedException("the disk is full")

    source = queue(-1, give_up=given_up)
    result = run(topology(source, stubborn, max_attempts=3))
    assert tries == [3, 3, 3]
    assert (len(result.dead_letters), result.failures) == (1, 6)
    assert source.heard[2:] == [("given up", -1)]
    # No bolt has processed the dead letter, so nothing is acked: a queue keeps the message.
    deaf = queue(-1)
    run(topology(deaf, stubborn, max_attempts=3))
    assert deaf.heard == [("fail", -1)] * 2


def test_the_dead_letter_of_a_message_that_timed_out_is_on_the_stream_of_its_spout() -> None:
    @bolt(output="n long")
    class Forgetful(Bolt):
        def execute(self, tuple: Any) -> None:
            return None

    result = run(topology(queue(5), bolt=Forgetful, stream="source"))
    assert [row[:4] for row in result["handler"]] == [("source", None, 2, "timeout")]


def test_the_dead_letter_of_a_failed_window_is_on_the_stream_of_its_bolt_and_its_tuples_wait_for_the_reader() -> None:
    @tumbling(count(2), on_error="dead_letter", output="n long")
    def sums(window: Any) -> Any:
        raise ValueError("no sum")

    source = queue(1, 2)
    Holding.heard = source.heard

    @bolt()
    class Late(Holding):
        def execute(self, tuple: Any) -> None:
            if not is_tick(tuple):
                assert (tuple.component, tuple.task, tuple.attempts) == ("picky", 0, 1)
                assert json.loads(tuple.tuples) == [{"n": 1}, {"n": 2}]
                self.held.append(tuple)
                return
            for letter in self.held:
                source.heard.append("done")
                self.collector.ack(letter)
            self.held = []

    result = run_topology(topology(source, Late, sums), clock=VirtualClock())
    assert source.heard == ["done", ("ack", 1), ("ack", 2)]
    assert [letter.is_window for letter in result.dead_letters] == [True]
    with pytest.raises(ConfigError, match=r"a window of 'picky' failed, .* its rows are in tuples"):
        assert result.dead_letters[0].values == ()


def test_dead_letters_are_an_output_only_if_asked_for() -> None:
    plan = topology(queue(-1))
    assert "picky.dead_letters" not in run_topology(plan, clock=VirtualClock()).outputs
    builder = TopologyBuilder("alone").configure(max_attempts=1)
    source = queue(-1)
    builder.set_spout("source", source)
    builder.set_bolt("picky", picky).shuffle_grouping("source")
    result = run_topology(builder.build(), clock=VirtualClock(), outputs=["picky.dead_letters"])
    assert [row[0] for row in result["picky.dead_letters"]] == ["picky"]
    assert source.heard == [], "no bolt has taken it, so nothing is acked"


def test_emitting_on_or_declaring_a_dead_letters_stream_is_refused() -> None:
    @bolt(output="n long")
    def sly(tuple: Any, collector: Any) -> None:
        collector.emit(tuple.n, stream="dead_letters")

    with pytest.raises(BoltError, match="'dead_letters' takes dead letters only"):
        run(topology(queue(1), bolt=sly))

    @bolt(output={"default": "n long", "Dead_Letters": "n long"})
    def greedy(tuple: Any) -> None:
        return None

    with pytest.raises(TopologyError, match="bolt 'picky' has a stream 'Dead_Letters', where dead letters go"):
        topology(queue(1), bolt=greedy)


def topology_with_input() -> Topology:
    return topology(InputSpout("n long"), retry_delay=seconds(0))


def test_dead_letters_on_spark_equal_those_in_one_process() -> None:
    batches = {"source": [[(1,), (-2,)], [(-3,), (4,)]]}
    local = run_topology(topology_with_input(), batches, clock=VirtualClock())
    chain = Chain(topology_with_input(), letters=False)
    spark = [row for rows in batches["source"] for row in chain.run({"source": rows}).get("handler", [])]
    assert len(spark) == 2
    for one, other in zip(local["handler"], spark, strict=True):
        assert (one[1], other[1]) == (None, 0), "there a whole message has failed, here a tuple in its task"
        assert [*one[:1], *one[2:]] == [*other[:1], *other[2:]]
        assert one[3] == "FailedException: [FAILED] negative"


def test_the_dead_letter_of_a_failed_window_on_spark_equals_that_in_one_process() -> None:
    @tumbling(count(2), on_error="dead_letter", output="n long")
    def sums(window: Any) -> Any:
        if min(row.n for row in window) < 0:
            raise ValueError("no sum")
        return sum(row.n for row in window)

    plan = topology(InputSpout("n long"), bolt=sums)
    batches = {"source": [[(1,), (-2,), (3,)], [(4,), (-5,), (-6,)]]}
    local = run_topology(plan, batches, clock=VirtualClock())
    chain = Chain(plan, letters=False)
    spark = [row for rows in batches["source"] for row in chain.run({"source": rows}).get("handler", [])]
    assert len(spark) == 2
    # The windows are over the clock, which counts batches in the one and is virtual in the other.
    assert [row[:3] + row[7:] for row in spark] == [row[:3] + row[7:] for row in local["handler"]]
    assert all("ValueError: no sum" in row[3] for row in (*spark, *local["handler"]))


def test_on_spark_a_dead_letter_that_its_reader_fails_is_a_dead_letter_of_the_reader() -> None:
    @bolt()
    def stubborn(letter: Any) -> None:
        raise FailedException("the disk is full")

    plan = topology(InputSpout("n long"), stubborn, retry_delay=seconds(0))
    ((component, _, attempts, error, *_, tuples),) = Chain(plan).run({"source": [(1,), (-2,)]})["handler.dead_letters"]
    assert (component, attempts, error) == ("handler", 2, "FailedException: [FAILED] the disk is full")
    (inner,) = json.loads(tuples)
    assert (inner["component"], inner["stream"]) == ("picky", "dead_letters")
    assert json.loads(inner["values"]["tuples"])[0]["values"] == {"n": -2}
    with pytest.raises(BoltError, match="'handler' failed"):
        Chain(plan, letters=False).run({"source": [(-2,)]})


def test_on_spark_a_batch_with_dead_letters_waits_for_their_readers_and_is_given_up() -> None:
    @tumbling(count(2), output="errors string")
    def pairs(window: Any) -> Any:
        return " ".join(letter.error for letter in window)

    run = Acking(topology(InputSpout("n long"), pairs, retry_delay=seconds(0), message_timeout=seconds(1000)))

    def told(*rows: int) -> list[tuple[int, str | None]]:
        news = run.run({"source": [(n,) for n in rows]})
        return [
            (batch, each.given_up)
            for (_, batch, _), each in zip(news, run.ledger.outcomes(run.ledger.batch), strict=True)
        ]

    assert told(1, -2) == [], "its letter waits in a window"
    assert told(3) == [(1, None)]
    assert told(-4, 5) == [(0, "picky"), (2, "picky")]
    assert not run.ledger.open


def test_a_dead_letter_holds_values_of_any_type() -> None:
    origin = Origin("source", 0, Fields("days", "many"))
    odd = Tuple(({date(2024, 2, 29): b"x", None: 1}, [(1, {2: 3})]), origin)
    row = DeadLetter(component="picky", task=0, error="no", tuples=[odd]).row()
    values = {"days": {"2024-02-29": "b'x'", "None": 1}, "many": [[1, {"2": 3}]]}
    assert json.loads(row[-1]) == [{"component": "source", "stream": "default", "values": values}]


def test_the_tuples_of_a_dead_letter_are_json_for_every_parser_also_with_nan_and_infinity() -> None:
    def refused(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    row = DeadLetter(
        component="picky", task=0, error="no", tuples=[{"x": float("nan"), "y": [float("-inf"), 1.5, float("inf")]}]
    ).row()
    assert json.loads(row[-1], parse_constant=refused) == [{"x": "NaN", "y": ["-Infinity", 1.5, "Infinity"]}]


def test_a_map_whose_keys_have_the_same_text_keeps_all_of_them() -> None:
    row = DeadLetter(component="picky", task=0, error="no", tuples=[{"m": {1: "a", "1": "b"}, "n": {1: "a"}}]).row()
    assert json.loads(row[-1]) == [{"m": {"1": "a", "'1'": "b"}, "n": {"1": "a"}}]


def test_the_error_of_a_dead_letter_fits_a_string_field_whatever_text_it_has() -> None:
    error = FailedException(json.loads('"half a pair: \\ud83d"'))
    row = DeadLetter(component="picky", task=0, error=error, tuples=None, window_end=1, window_key="\ud83d").row()
    fitting = row_of(row, DEAD_LETTER_FIELDS, "dead_letters")
    assert (fitting[3], fitting[6]) == ("[FAILED] half a pair: \\ud83d", "\\ud83d")


def test_a_state_that_counts_dead_letters_is_committed_before_the_source_is_notified() -> None:
    @bolt(output="n long")
    class Counting:
        def init_state(self, state: Any) -> None:
            self.state = state

        def execute(self, letter: Any) -> Any:
            self.state.put("n", self.state.get("n", 0) + 1)
            return self.state.get("n")

    source, states = queue(-1, -2, 3, give_up=given_up), MemoryStateProvider()
    plan = topology(source, Counting, state_checkpoint_interval=seconds(10))
    with LocalCluster(plan, clock=VirtualClock(), states=states) as cluster:
        cluster.run_for(seconds(5))
        assert ("given up", -1) not in source.heard, "no checkpoint holds the letters yet"
        cluster.run()
    assert source.heard[-2:] == [("given up", -1), ("given up", -2)]
    assert dict(states.state("handler", 0).items()) == {"n": 2}


def test_dead_letters_are_drawn_dotted() -> None:
    assert '-. "dead_letters: shuffle" .->' in topology_with_input().to_mermaid()


def test_a_tuple_that_no_spout_can_replay_is_a_dead_letter_at_once() -> None:
    without_ackers = run_topology(topology(queue(1, -2), acker_executors=0), clock=VirtualClock())
    assert [row[:4] for row in without_ackers["handler"]] == [("picky", 0, 1, "[FAILED] negative")]
    assert (without_ackers.acked, without_ackers["picky"]) == (2, [(1,)])

    @spout(output="n long")
    def untracked(collector: Any) -> None:
        if not done:
            done.append(1)
            collector.emit((-5,))

    done: list[int] = []

    @bolt(output="n long")
    class Sour(Bolt):
        def execute(self, tuple: Any) -> None:
            self.collector.fail(tuple)
            raise FailedException("twice")

    result = run(topology(untracked, bolt=Sour))
    assert [(letter.values, letter.error, letter.is_message) for letter in result.dead_letters] == [
        ((-5,), "failed", False)
    ]
    assert [row[0] for row in result["handler"]] == ["picky"]


def test_a_failure_on_a_tick_tuple_is_reported() -> None:
    @bolt(output="n long")
    def ticking(tuple: Any) -> None:
        if is_tick(tuple):
            raise FailedException("no tick, please")

    @bolt()
    def deaf(letter: Any) -> None:
        return None

    result = run(topology(queue(1), deaf, ticking, tick_tuple_freq=seconds(5)))
    assert result.dead_letters == []
    assert {(each.component, str(each.error)) for each in result.errors} == {("picky", "[FAILED] no tick, please")}


def test_a_failed_window_of_tuples_that_no_spout_can_replay_is_a_dead_letter_under_on_error_fail() -> None:
    @tumbling(count(2), on_error="fail", output="n long")
    def sums(window: Any) -> Any:
        raise FailedException("no sum")

    result = run_topology(topology(queue(1, 2), bolt=sums, acker_executors=0), clock=VirtualClock())
    ((component, _, _, error, *_),) = result["handler"]
    assert (component, "no sum" in error, result.acked) == ("picky", True, 2)
