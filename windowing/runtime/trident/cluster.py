"""TridentCluster: runs a Trident topology in one process, with batches side by side, the same way every time.

    master, coordinators, emitters, groups, acker     tasks with inboxes, on the loop of LocalCluster (runtime/loop.py)
    records    coordinator, metadata, where partitions end, windows     durable in state_path
    states     those of the topology, each in its own store

Laws
- The states, and the rows of the sinks, are those of TridentRun: one batch after the other. What is under way at the same time,
  what fails and is tried again, in which order tasks step, and where a run is killed and started again, changes neither.
- The same plan, spouts, seed and clock give the same run. With a VirtualClock nothing waits.
- An error that is no FailedException ends the cluster; a new one goes on from the records and states.

Source: what Storm's `LocalCluster` does with a `TridentTopology`; the loop is ours.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from windowing.acking.retry import RetryPolicy
from windowing.core.checks import did_you_mean
from windowing.core.measures import Duration
from windowing.errors import ConfigError, shown
from windowing.runtime.batches import batches_by_name, rows_in
from windowing.runtime.clock import Clock
from windowing.runtime.loop import LoopedCluster
from windowing.runtime.stores.records import SqliteRecordStore
from windowing.runtime.tasks import Task
from windowing.runtime.trident.crew import TridentCrew, coordinator_state, crew_of
from windowing.runtime.trident.hub import TridentHub, TridentResult
from windowing.runtime.trident.kept import owners_of
from windowing.runtime.trident.master import SinkWriter
from windowing.topology.support import Runtime, settings_without_effect
from windowing.topology.trident.fields import Row
from windowing.topology.trident.plan import TridentPlan
from windowing.topology.trident.topology import TridentTopology, planned
from windowing.transactions.coordinator_rules import CoordinatorConfig
from windowing.transactions.transactional_state import MemoryRecordStore, RecordStore

__all__ = ["TridentCluster", "run_trident"]

Batches = Mapping[str, Sequence[Iterable[Any]]]
"""For a stream the rows of each batch, in place of its spout: the n-th are those of txid n, in every attempt and every run."""


class TridentCluster(LoopedCluster):
    """A Trident topology at work. A context manager: leaving it closes spouts, operations and states.

    batches: rows for streams, in place of their spouts. clock: the system's if left out. seed: None does every step in its order;
    a number chooses the order by chance, the same for the same number. coordination: how many batches are under way, how often a
    batch is tried, whether it is skipped then; if left out `topology.max.spout.pending` (1), `windowing.max.attempts` and the
    delays of the settings. records: where coordinator, spouts and windows keep what outlives the process; with a `state_path`, in
    that SQLite file; else in memory. sinks: functions of (txid, rows) that take the rows of committed batches, in place of the
    result: once for each txid, but for the last ones before a crash, which may come again under the same txid.

    `states[id]` are the partitions of a state. Raises ConfigError for a stream whose spout emits nothing.

    >>> from windowing.runtime import VirtualClock
    >>> from windowing.topology.trident.builtins import Count
    >>> from windowing.transactions.batch_spouts import FixedBatchSpout
    >>> topology = TridentTopology("words")
    >>> spout = FixedBatchSpout("word string", 2, [("to",), ("be",), ("to",)])
    >>> _ = topology.new_stream("words", spout).group_by("word").aggregate(None, Count(), "n long").sink("counts")
    >>> with TridentCluster(topology, clock=VirtualClock()) as cluster:
    ...     result = cluster.run()
    >>> result.batches, sorted(result["counts"])
    (2, [('be', 1), ('to', 1), ('to', 1)])
    """

    def __init__(
        self,
        topology: TridentTopology | TridentPlan | None = None,
        *,
        batches: Batches | None = None,
        clock: Clock | None = None,
        seed: int | None = None,
        coordination: CoordinatorConfig | None = None,
        records: RecordStore | None = None,
        state_path: str | Path | None = None,
        sinks: Mapping[str, SinkWriter] | None = None,
    ) -> None:
        self.plan = planned(topology, "TridentCluster")
        if records is not None and state_path is not None:
            raise ConfigError(
                f"topology {self.plan.name!r} was given both records= and state_path={shown(str(state_path))}; leave one out"
            )
        for sentence in settings_without_effect(Runtime.TRIDENT, self.plan.config):
            logging.getLogger("windowing").warning("topology %r: %s", self.plan.name, sentence)
        self._hub = TridentHub(seed or 0)
        super().__init__(self.plan.name, clock, self._hub, seed)
        given = _checked_batches(self.plan, batches)
        writers = _checked_sinks(self.plan, sinks)
        self._hub.trident.sinks = {name: [] for name in self.plan.sinks if name not in writers}
        self._own = None if state_path is None else SqliteRecordStore(state_path)
        store = self._own or records or MemoryRecordStore()
        self._coordinator = coordinator_state(self.plan, store)
        self.states: dict[str, list[Any]] = {}
        try:
            for id, state in self.plan.states.items():
                made = (state.spec.factory.make_state(part, state.partitions) for part in range(state.partitions))
                self.states[id] = list(made)
            config = coordination or _coordination(self.plan)
            self.crew: TridentCrew = crew_of(self.plan, self._hub, config, store, self.states, given)
        except BaseException:
            self._end("it could not be made")
            raise
        self.crew.master.writers = writers

    @property
    def result(self) -> TridentResult:
        """What came of the run so far."""
        return self._hub.trident

    def explain(self) -> str:
        """Return groups, exchanges and operations as text."""
        return self.plan.explain()

    # -- running -------------------------------------------------------------------------------------------------------

    def run(self, drain: bool = True) -> TridentResult:
        """Run until every spout has ended and every batch is committed; then windows fire what is left, in one batch more.

        Without `drain` windows stay open, for a cluster that is started again with the same records. A spout of single tuples has
        ended when it has nothing; for one that waits use `run_for`. Raises FailedException for a batch that failed as often as it
        may, BoltError for other errors of users' code.
        """
        self._begin()
        master = self.crew.master
        master.until_end, master.drains = True, drain
        self._busy()
        while not master.machine.over and self._pass_time():
            self._busy()
        return self.result

    def run_for(self, span: Duration | timedelta) -> TridentResult:
        """Run for this long by the clock, and leave everything as it is then. With a VirtualClock a round in which batches begin
        takes a millisecond."""
        self._begin()
        self.crew.master.until_end = False
        self._run_for(span)
        return self.result

    def ask(self, function: str, args: str) -> list[Row]:
        """Return what a function of DRPC answers; no batch begins meanwhile. Raises FailedException if it fails, or gives no answer
        within `topology.message.timeout.secs`."""
        self._begin()
        task = self.crew.requests.get(function)
        if task is None:
            known = self.crew.requests
            raise ConfigError(
                f"there is no function {shown(function)}; {did_you_mean(str(function), known) if known else 'there is none'}"
            )
        others: list[Task] = [each for each in self.crew.tasks if each is not self.crew.master]
        number = self._guarded(task.ask, args)
        while (answer := task.answer(number)) is None:
            if not self._guarded(self._loop.round, others):
                self._loop.wait(others)
        return answer

    def values(self, state: str) -> Any:
        """Return what a state holds: the items of all partitions of a map as a dict, or the value. Cost: O(what it holds)."""
        if state not in self.states:
            raise ConfigError(f"there is no state {shown(state)}; {did_you_mean(state, self.states)}")
        partitions = self.states[state]
        if not hasattr(partitions[0], "items"):
            return partitions[0].get()
        return {key: value for partition in partitions for key, value in partition.items()}

    def activate(self) -> None:
        """Begin batches again."""
        self._begin()
        self._guarded(self.crew.master.activate)

    def deactivate(self) -> None:
        """Begin no more batches; what is under way goes on."""
        self._begin()
        self._guarded(self.crew.master.deactivate)

    # -- the loop ------------------------------------------------------------------------------------------------------

    @property
    def tasks(self) -> Sequence[Task]:
        return self.crew.tasks

    def _take_hold(self) -> None:
        """Make the states this topology's own; states and records were opened when the cluster was made, to be read."""
        for id, owner in owners_of(self.plan, self._coordinator).items():
            for state in self.states[id]:
                take = getattr(state, "own", None)
                if take is not None:
                    take(owner)

    def _held(self) -> Iterable[Callable[[], object]]:
        states = [state.close for partitions in self.states.values() for state in partitions]
        return states if self._own is None else [*states, self._own.close]

    def _emissions(self) -> int:
        return self.crew.master.begun

    def _pass_time(self, end_ms: int | None = None) -> bool:
        return self._loop.wait(self.crew.tasks, end_ms)


def run_trident(
    topology: TridentTopology | TridentPlan,
    batches: Batches | None = None,
    *,
    clock: Clock | None = None,
    seed: int | None = None,
    coordination: CoordinatorConfig | None = None,
    records: RecordStore | None = None,
    state_path: str | Path | None = None,
    sinks: Mapping[str, SinkWriter] | None = None,
    drain: bool = True,
) -> TridentResult:
    """Run a topology until its spouts have ended; the arguments are those of TridentCluster. `states` of the result is what they
    hold then, by id: for tests and examples, for it is copied.

    >>> from windowing.runtime import VirtualClock
    >>> from windowing.runtime.stores.factory import map_state
    >>> from windowing.runtime.stores.memory import MemoryStore
    >>> from windowing.topology.trident.builtins import Count
    >>> from windowing.transactions.batch_spouts import FixedBatchSpout
    >>> topology = TridentTopology("words")
    >>> words = topology.new_stream("words", FixedBatchSpout("word string", 2, [("to",), ("be",), ("to",)]))
    >>> _ = words.group_by("word").persistent_aggregate(map_state(MemoryStore(), "counts"), None, Count(), "n long")
    >>> run_trident(topology, clock=VirtualClock()).states
    {'state1': {('be',): 1, ('to',): 2}}
    """
    cluster = TridentCluster(
        topology,
        batches=batches,
        clock=clock,
        seed=seed,
        coordination=coordination,
        records=records,
        state_path=state_path,
        sinks=sinks,
    )
    with cluster:
        result = cluster.run(drain)
        result.states = {id: cluster.values(id) for id in cluster.states}
    return result


def _coordination(plan: TridentPlan) -> CoordinatorConfig:
    config = plan.config
    retry = RetryPolicy.of(config)
    return CoordinatorConfig(config.max_spout_pending or 1, config.batch_emit_interval_ms, retry=retry)


def _checked_batches(plan: TridentPlan, batches: Batches | None) -> dict[str, list[list[Any]]]:
    schemas = {str(spout.source.name): spout.schema for spout in plan.spouts if spout.kind is not None}
    given = batches_by_name(batches, "stream")
    for name in given:
        if name not in schemas:
            raise ConfigError(f"there is no stream {shown(name)}; {did_you_mean(str(name), schemas)}")
    return {
        name: [rows_in(list(rows), schemas[name], f"stream {name!r}, batch {n}") for n, rows in enumerate(some)]
        for name, some in given.items()
    }


def _checked_sinks(plan: TridentPlan, sinks: Mapping[str, SinkWriter] | None) -> dict[str, SinkWriter]:
    for name, write in (sinks or {}).items():
        if name not in plan.sinks:
            raise ConfigError(f"there is no sink {shown(name)}; {did_you_mean(str(name), plan.sinks)}")
        if not callable(write):
            raise ConfigError(f"the sink {name} is given {shown(write)}; give a function of (txid, rows)")
    return dict(sinks or {})
