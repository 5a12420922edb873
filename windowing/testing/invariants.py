"""Invariants that hold in every run under any fault, checked from outside; used by all kinds of tests.

| name            | invariant                                                                        | checked by                 |
|-----------------|----------------------------------------------------------------------------------|----------------------------|
| nothing lost    | in == shown + pending + on the late stream + skipped, as numbers and by tuple    | `check_counts`, `check_ids` |
| acked xor failed | each tree is acked or failed, once; it is acked only when none of its tuples is left | `Watch`                |
| no lost state   | a bolt emits the same if its windows and policies are stored and read back after each batch | `check_restarts` |
| exactly once    | sinks and states of Trident are the same if each batch is tried again            | `check_attempts`           |
| no silent drop  | a tuple that is on no stream is counted: late, skipped, a dead letter, or an error | `check_counts`, `Watch`  |

All checks raise AssertionError with the values found. `Watch` observes a running LocalCluster; the others take plain data, so they
also check the metrics and outputs of a Spark job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from windowing.acking.acker import AckedRoots, Failed
from windowing.errors import ConfigError, quote
from windowing.local.checkpoints import CheckpointedWindowTask, RecoveredWindowTask, StatefulBoltTask
from windowing.local.clock import VirtualClock
from windowing.local.cluster import LocalCluster
from windowing.local.router import Delivery
from windowing.local.run import LocalBatch, LocalResult, LocalRun, batch_by_stream, copy_of_row
from windowing.local.spouts import Batches, SpoutTask, listed
from windowing.local.tasks import BoltTask, Task
from windowing.local.trident_cluster import checked_batches, contents_of, shows_contents
from windowing.local.trident_tasks import TridentResult
from windowing.local.windowed import WindowedBoltTask
from windowing.schema.checks import DEFAULT_STREAM
from windowing.topology.bolts import WindowedBolt
from windowing.topology.dead_letters import DeadLetter
from windowing.topology.decorators import bolt_of
from windowing.trident.kinds import StateType
from windowing.trident.plan import TridentPlan
from windowing.trident.streams import TridentTopology
from windowing.trident.subtopology import TridentRun
from windowing.windows.key_state import one_nan
from windowing.windows.measures import Duration, as_duration_ms

_SECOND = Duration(ms=1_000)


def check_counts(counts: Mapping[str, int], over: bool = False) -> None:
    """Assert that the counts of one bolt account for every tuple; `over`: the input has ended, so nothing is pending.

    counts: in, shown, pending, late, skipped, and optionally expired, as executors and the metrics of a query report them.

    >>> check_counts({"in": 5, "shown": 2, "pending": 1, "late": 1, "skipped": 1})
    """
    if not isinstance(counts, Mapping):
        raise ConfigError(
            f"check_counts takes the counts of a bolt, got {quote(counts)}; write check_counts(result.counts)"
        )
    if any(isinstance(each, Mapping) for each in counts.values()):
        raise ConfigError(
            f"check_counts takes the counts of one bolt, got those of {', '.join(map(quote, counts))}; "
            f"write check_counts(result.counts[{quote(next(iter(counts)))}]), or use Watch for a whole topology"
        )
    missing = [name for name in ("in", "shown", "pending", "late", "skipped") if name not in counts]
    if missing:
        raise ConfigError(
            f"check_counts takes the counts of a windowed bolt, got {quote(dict(counts))} without {missing[0]!r}"
        )
    accounted = counts["shown"] + counts["pending"] + counts["late"] + counts["skipped"]
    assert counts["in"] == accounted, f"{counts['in'] - accounted} of {counts['in']} tuples are nowhere: {dict(counts)}"
    assert min(counts.values()) >= 0, f"a count is below zero: {dict(counts)}"
    assert not over or counts["pending"] == 0, (
        f"{counts['pending']} tuples are pending: {dict(counts)}; drain() the run first, or leave out over=True"
    )
    if "expired" in counts:
        accepted = counts["in"] - counts["late"]
        assert counts["expired"] <= accepted, f"more tuples expired than were accepted: {dict(counts)}"
        assert not over or counts["expired"] == accepted, f"tuples were never let go: {dict(counts)}"


def check_restarts(
    bolt: Any,
    batches: Iterable[LocalBatch],
    *,
    streams: Sequence[str] = (DEFAULT_STREAM,),
    every: Duration = _SECOND,
) -> LocalResult:
    """Assert that a windowed bolt emits the same rows with a restart after each micro-batch, as on Spark; return its result.

    A policy that leaves something out of `get_state`, and a bolt that keeps something in a field of its own, emit other rows then.
    every: how far the clock advances before each batch, and before the drain. Raises AssertionError with the first batch that
    differs, or with one whose rows the bolt changes; ConfigError if no row has the bolt's timestamp, and what the bolt raises.
    Cost: two runs in memory.

    >>> from windowing import count, tumbling
    >>> @tumbling(count(2), output="total long")
    ... def total(window):
    ...     return sum(row["n"] for row in window)
    >>> check_restarts(total, [[{"n": 1}], [{"n": 2}, {"n": 3}]])["default"]
    [(3,), (3,)]
    """
    as_duration_ms(every, "every")  # the clock would call it a span
    given = [*map(_listed, listed(batches, "check_restarts takes a list of batches, each a list of rows"))]
    for batch in given:
        batch_by_stream(batch, (streams,) if isinstance(streams, str) else tuple(streams))
    _refuse_rows_without(bolt_of(bolt), given)
    name, before = bolt_of(bolt).name, copy_of_row(given)
    without, result = _emitted(bolt, given, streams, every, restarts=False)
    for at, (batch, was) in enumerate(zip(given, before, strict=True)):
        if [batch] != [was]:  # of one object, such as an array, no comparison
            raise AssertionError(
                f"bolt {name!r} changes what is in its rows: batch {at} was {quote(was, 300)} and is {quote(batch, 300)} after a "
                "run; on Spark such a change is lost with the micro-batch; change a copy"
            )
    restarted, _ = _emitted(bolt, given, streams, every, restarts=True)
    if without == restarted:
        return result
    again, _ = _emitted(bolt, given, streams, every, restarts=False)
    # The first restart comes after the first batch, and is not what changes that.
    other = again if again != without else restarted if restarted[0] != without[0] else None
    if other is not None:
        where, ours, theirs = _first_difference(without, other)
        raise AssertionError(
            f"two runs of bolt {name!r} on the same batches differ: {where} {ours}, then {theirs}; what a bolt emits depends on "
            "its windows and its state alone: keep nothing in a class, module or closure, and read no clock and no random numbers"
        )
    where, ours, theirs = _first_difference(without, restarted)
    folds = "" if bolt_of(bolt).config.aggregate is None else ", and merge() of an aggregator changes neither argument"
    raise AssertionError(
        f"bolt {name!r} loses something in a restart: without one it emits {where} {ours}, with one {theirs}; "
        "get_state() of a policy returns all that its methods change, and a bolt keeps values in its state (init_state)"
        f"{folds}"
    )


def _refuse_rows_without(bolt: WindowedBolt, batches: Sequence[LocalBatch]) -> None:
    """Raise ConfigError if no row has the field of the bolt's timestamp: all would be invalid, and each check would hold."""
    field = bolt.config.timestamp
    lists = (rows for batch in batches for rows in (batch.values() if isinstance(batch, Mapping) else (batch,)))
    rows = [row for rows in lists for row in rows]
    if isinstance(field, str) and rows and all(isinstance(row, Mapping) and field not in row for row in rows):
        raise ConfigError(
            f"bolt {bolt.name!r} has timestamp={field!r}, and no row has such a field, the first is {quote(rows[0])}; name the "
            f"field that has the time: strategies.batches(..., timestamp={field!r})"
        )


def _listed(batch: Any) -> Any:
    """Return a batch whose rows can be read several times."""
    if isinstance(batch, Mapping):
        return {stream: _listed(rows) for stream, rows in batch.items()}
    return [*batch] if isinstance(batch, Iterator) else batch


def _emitted(
    bolt: Any, batches: Sequence[LocalBatch], streams: Sequence[str], every: Duration, restarts: bool
) -> tuple[list[Any], LocalResult]:
    """Return what a bolt emits on each stream in each batch and in the drain, and the result."""
    clock, found, late = VirtualClock(), list[Any](), 0
    with LocalRun(bolt, streams=streams, clock=clock, restarts=restarts) as run:
        for batch in [*batches, None]:
            clock.advance(every)
            before = {stream: len(rows) for stream, rows in run.result.rows.items()}
            run.drain() if batch is None else run._batch(batch)
            emitted = {f"stream {quote(stream)}": rows[before[stream] :] for stream, rows in run.result.rows.items()}
            found.append(emitted | {"the late stream": run.result.late[late:]})
            late = len(run.result.late)
    return _with_one_nan(found), run.result


def _with_one_nan(value: Any) -> Any:
    """Return rows with one object in place of every NaN, which equals itself in a list."""
    if isinstance(value, Mapping):
        return {name: _with_one_nan(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_with_one_nan, value)] if isinstance(value, list) else (*map(_with_one_nan, value),)
    return one_nan(value)


def _first_difference(ours: Sequence[Any], theirs: Sequence[Any]) -> tuple[str, str, str]:
    """Return the first batch and stream in which two runs differ, and what each emitted there."""
    at = next(at for at, (mine, others) in enumerate(zip(ours, theirs, strict=True)) if mine != others)
    stream = next(stream for stream in ours[at] if ours[at][stream] != theirs[at][stream])
    where = "in the drain" if at == len(ours) - 1 else f"in batch {at}"
    return f"{where} on {stream}", quote(ours[at][stream], 300), quote(theirs[at][stream], 300)


def check_attempts(
    topology: Callable[[], TridentTopology | TridentPlan], batches: Batches, *, every: Duration = _SECOND
) -> TridentResult:
    """Assert that a Trident topology has the same rows in its sinks, and the same states, if each batch is tried again, as after a
    worker is lost; return the sinks, states, late counts and number of batches (with the drain) of a run without failures.

    topology: a function that makes it, because each run needs new states. batches: of each stream, as for `run_trident`; a drain
    follows. The first attempt at a batch is dropped after its commit, which its next attempt has to undo or to skip, and before it
    if the topology writes a non-transactional state, which counts each commit. every: how far the clock advances before each batch.
    Raises AssertionError with the first batch, and the row of a sink or the key of a state, that differ; and what user code raises,
    with a note of the batch and the attempt. So no batch is skipped, and the result has no dead letters.
    Cost: two runs in memory, and a copy of the states after each batch.

    >>> from windowing.stores import MemoryStore, map_state
    >>> from windowing.trident import Count, FixedBatchSpout
    >>> def words():
    ...     topology = TridentTopology("words")
    ...     stream = topology.new_stream("words", FixedBatchSpout("word string", 1, []))
    ...     stream.group_by("word").persistent_aggregate(map_state(MemoryStore(), "counts"), None, Count(), "n long")
    ...     return topology
    >>> check_attempts(words, {"words": [["to", "be"], ["to"]]}).states
    {'state1': {('be',): 1, ('to',): 2}}
    """
    if not callable(topology):
        raise ConfigError(
            f"check_attempts takes a function that makes a topology, because each run needs new states, got {quote(topology)}; "
            "write def topology(): ..., which makes its stores too"
        )
    as_duration_ms(every, "every")
    without, result, name = _committed(topology, batches, every, retries=False)
    retried, _, _ = _committed(topology, batches, every, retries=True)
    if without == retried:
        return result
    again, _, _ = _committed(topology, batches, every, retries=False)
    if without != again:
        where, ours, theirs = _first_result(without, again)
        raise AssertionError(
            f"two runs of topology {name!r} on the same batches differ: {where} is {ours}, then {theirs}; the function that "
            "makes it makes all of its objects and stores too; keep nothing in a class, module or closure, and read no clock and "
            "no random numbers"
        )
    where, ours, theirs = _first_result(without, retried)
    raise AssertionError(
        f"topology {name!r} has other results if each batch is tried again: {where} is {ours} without a failure, {theirs} with "
        "one; a function, an aggregator or an updater keeps values in a state, not in a field of its own, and changes nothing in "
        "place that it is given"
    )


def _committed(
    topology: Callable[[], TridentTopology | TridentPlan], batches: Batches, every: Duration, retries: bool
) -> tuple[list[dict[str, Any]], TridentResult, str]:
    """Return the rows of each sink and the contents of each state after each batch and the drain, the result, and the name."""
    made = topology()
    plan = made.build() if isinstance(made, TridentTopology) else made
    if not isinstance(plan, TridentPlan):
        raise ConfigError(
            f"check_attempts takes a function that returns a TridentTopology, got {quote(plan)}; end it with return topology"
        )
    clock, found, run = VirtualClock(), list[dict[str, Any]](), TridentRun(plan)
    given, result = checked_batches(plan, batches), TridentResult({sink: [] for sink in plan.sinks})
    commits = all(state.factory.kind is not StateType.NON_TRANSACTIONAL for state in plan.written)
    shown = {state.id: run.states[state.id] for state in plan.written if shows_contents(run.states[state.id])}
    last = max(map(len, given.values()), default=0)
    try:
        for at in range(last + 1):
            clock.advance(every)
            rows = {stream: lists[at] for stream, lists in given.items() if at < len(lists)}
            options: dict[str, Any] = {"now_ms": clock.now_ms(), "drain": at == last}
            attempt = 0
            try:
                if retries:
                    lost = run.begin(rows, attempt=attempt, **options)
                    if commits:
                        lost.commit()
                    attempt = 1
                flight = run.begin(rows, attempt=attempt, **options)
                sinks = flight.commit()
            except Exception as problem:
                where = "the drain" if at == last else f"batch {at}"
                problem.add_note(f"In {where} of topology {plan.name!r}, attempt {attempt}.")
                raise
            run.next_txid += 1
            for group, count in flight.late().items():
                result.late[group] = result.late.get(group, 0) + count
            result.states.update((id, contents_of(partitions)) for id, partitions in shown.items())
            for sink, emitted in sinks.items():
                result.sinks[sink] += emitted
            result.batches += 1
            places = {f"sink {quote(sink)}": emitted for sink, emitted in sinks.items()}
            found.append(_with_one_nan(places | {f"state {quote(id)}": value for id, value in result.states.items()}))
    finally:
        run.close()
    return found, result, plan.name


def _first_result(ours: Sequence[Any], theirs: Sequence[Any]) -> tuple[str, str, str]:
    """Return the first row of a sink, or value of a state, in which two runs of Trident differ, and what each has there."""
    at = next(at for at, (mine, others) in enumerate(zip(ours, theirs, strict=True)) if mine != others)
    place = next(place for place in ours[at] if ours[at][place] != theirs[at][place])
    where, mine, others = (
        "in the drain" if at == len(ours) - 1 else f"in batch {at}",
        ours[at][place],
        theirs[at][place],
    )
    if isinstance(mine, dict):
        key = next(key for key in {**mine, **others} if mine.get(key) != others.get(key))
        return f"{where} key {quote(key)} of {place}", quote(mine.get(key), 300), quote(others.get(key), 300)
    if isinstance(mine, list):
        pairs = enumerate(zip_longest(mine, others))
        row, mine, others = next((row, one, other) for row, (one, other) in pairs if one != other)
        return f"{where} row {row} of {place}", quote(mine, 300), quote(others, 300)
    return f"{where} {place}", quote(mine, 300), quote(others, 300)


def check_ids(
    fed: Iterable[Hashable],
    shown: Iterable[Hashable],
    late: Iterable[Hashable] = (),
    skipped: Iterable[Hashable] = (),
    pending: Iterable[Hashable] = (),
) -> None:
    """Assert that each fed tuple, identified by a unique id, has exactly one outcome; `shown` may repeat ids.

    >>> check_ids(fed=[1, 2, 3], shown=[1, 1, 2], late=[3])
    """
    outcomes = [("shown", set(shown)), ("late", list(late)), ("skipped", list(skipped)), ("pending", list(pending))]
    found = Counter(id for _, ids in outcomes for id in ids)
    wanted = Counter(fed)
    assert max(wanted.values(), default=1) == 1, "ids of tuples that were fed repeat; give each its own"
    lost, made = wanted - found, found - wanted
    where = {id: [name for name, ids in outcomes if id in ids] for id in [*made][:10]}
    assert found == wanted, f"tuples with no fate: {sorted(map(repr, lost))[:10]}; with too many: {where}"


class Watch:
    """Checks the acks and fails of a cluster's spouts. Create it before the first step; `check` after any step, `finish` at the
    end.

    It uses only the messages to the spouts and the tuples in inboxes and windows. Tuples that a bolt stores itself are included
    only if the bolt lists them in its attribute `held`. Cost of `check`: O(tuples).
    """

    def __init__(self, cluster: LocalCluster) -> None:
        if not isinstance(cluster, LocalCluster):
            raise ConfigError(
                f"Watch is given a LocalCluster, got {quote(cluster)}; write Watch(LocalCluster(topology))"
            )
        result = cluster.result
        if result.acked or result.failures:
            raise ConfigError(
                "Watch hears of messages from now on, and some were acked or failed; make it before the first step"
            )
        self._cluster = cluster
        self.heard: dict[int, AckedRoots | Failed] = {}
        self._letters = 0
        """Number of acked trees whose root is a dead letter."""
        for spout in cluster.task_set.spouts:
            self._listen(spout)

    def _listen(self, spout: SpoutTask) -> None:
        handle = spout.handle

        def heard(message: AckedRoots | Failed) -> None:
            roots = message.roots if isinstance(message, AckedRoots) else [message.root]
            for root in roots:
                assert root not in self.heard, f"a tree hears twice: {self.heard[root]}, then {message}"
                self.heard[root] = message
            if not isinstance(message, Failed):
                trees = set(roots)
                left = [one for one in self._unsettled() if not trees.isdisjoint(one.get_message_id())]
                assert not left, f"acked while tuples of their trees are left: {left[:3]}"
                self._letters += sum(isinstance(spout.pending.payload(root), DeadLetter) for root in roots)
            handle(message)

        spout.handle = heard  # type: ignore[method-assign]

    def check(self) -> None:
        """Assert the invariants that hold between any two steps."""
        result = self._cluster.result
        for counts in result.counts.values():
            check_counts(counts)
        acked = sum(isinstance(message, AckedRoots) for message in self.heard.values())
        messages = acked - self._letters
        assert messages == result.acked, f"{messages} trees of messages were acked, the result says {result.acked}"
        assert len(self.heard) - acked == result.failures, (
            f"{len(self.heard) - acked} failed, it says {result.failures}"
        )
        for acker in self._cluster.task_set.ackers:
            acker.acker.check()
        for spout in self._cluster.task_set.spouts:
            spout.pending.check()
        for task in self._cluster.task_set.tasks:
            _check_kept(task)
        left = {root for one in self._unsettled() for root in one.get_message_id()}
        early = [root for root in left if isinstance(self.heard.get(root), AckedRoots)]
        assert not early, f"tuples of acked trees are left: {early[:3]}"

    def finish(self, messages: int) -> None:
        """Assert the invariants of a finished run: each of `messages` was acked or is a dead letter, and nothing is held."""
        self.check()
        result = self._cluster.result
        dead = sum(letter.is_message for letter in result.dead_letters)
        assert result.acked + dead == messages, f"{messages} messages, {result.acked} acked, {dead} dead letters"
        assert self._cluster.pending == 0, f"{self._cluster.pending} messages are in flight"
        for counts in result.counts.values():
            check_counts(counts, over=True)
        heard = self.heard
        left = [one for one in self._unsettled() if not all(root in heard for root in one.get_message_id())]
        assert not left, f"tuples that nobody settled, of trees that nobody heard of: {left[:3]}"

    def _unsettled(self) -> Iterator[Delivery]:
        for task in self._cluster.task_set.tasks:
            held: list[Any] = [list(task.inbox)]
            if isinstance(task, CheckpointedWindowTask | StatefulBoltTask):
                held.append(task.stateful.held())
            elif isinstance(task, WindowedBoltTask):
                held.append(task.executor.snapshot())
            elif isinstance(task, BoltTask):
                held.append(getattr(task.caller.instance, "held", []))
            for one in _deliveries(held):
                if one._anchors is not None and not one._anchors.settled:
                    yield one


def _check_kept(task: Task) -> None:
    """Run the `check` of the machines of a checkpointed task."""
    if isinstance(task, CheckpointedWindowTask | StatefulBoltTask):
        task.stateful.check()
    if isinstance(task, RecoveredWindowTask):
        task.recovery.check()
    elif isinstance(task, CheckpointedWindowTask):
        task.executor.check()


def _deliveries(data: Any) -> Iterator[Delivery]:
    """Yield every tuple in plain data, once for each occurrence."""
    if isinstance(data, Delivery):
        yield data
    elif isinstance(data, Mapping):
        for item in data.values():
            yield from _deliveries(item)
    elif isinstance(data, list | tuple):
        for item in data:
            yield from _deliveries(item)
