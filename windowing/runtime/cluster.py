"""LocalCluster: runs a topology in one process, in one loop, the same way every time.

    round   hear the clock; each task once, in topological order: spouts emit, bolts take what lies in their inboxes, ackers last
    batch   the rows of the inputs; rounds until nothing moves; then each windowed bolt makes its turn, in topological order
    run     the batches, or rounds until nothing moves; then the windows are drained, in topological order; then whatever was
            emitted is acked, or has failed for the last time

Laws
- The same topology, input, seed and clock give the same run, whatever the machine does.
- With a VirtualClock nothing waits: when nothing moves, the clock is set to the next deadline.
- An error of a component ends the cluster; nothing goes on with half of it.

Source: Storm's `LocalCluster`; the loop is ours.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from windowing.core.checks import DEFAULT_STREAM, did_you_mean
from windowing.core.measures import Duration
from windowing.errors import ConfigError, shown
from windowing.runtime.batches import batches_by_name, listed, rows_in
from windowing.runtime.clock import Clock, VirtualClock
from windowing.runtime.crew import Crew, crew_of
from windowing.runtime.hub import ClusterResult, Hub, output_name
from windowing.runtime.loop import LoopedCluster
from windowing.runtime.spouts import InputSource
from windowing.runtime.states_in_use import StatesInUse
from windowing.runtime.tasks import BoltTask, Task
from windowing.runtime.windowed import WindowedBoltTask
from windowing.topology.marking import ComponentKind
from windowing.topology.plan import Topology, required
from windowing.topology.support import Runtime, settings_without_effect
from windowing.transactions.state import StateProvider

__all__ = ["LocalCluster", "run_topology"]

_LONGEST_POLL_MS = 1000

Batches = Mapping[str, Sequence[Iterable[Any]]]
"""For each InputSpout the rows of each batch: tuples, or dicts by name."""


class LocalCluster(LoopedCluster):
    """A topology at work. A context manager: leaving it closes spouts and bolts.

    batches: the rows of every InputSpout, batch by batch; then turns of windows over event time come at the ends of batches.
    clock: the system's if left out. seed: None does every step in its order; a number chooses the order of steps by chance,
    the same for the same number, to find what depends on it. outputs: the streams to keep, as "count" or "count.late"; those
    that nobody reads if left out. states: where states and windows are that outlive the process, as `topology.state.provider`
    says if left out; with a `state_path`, in that SQLite file. What is given as `states` is left open. A topology that is started
    again with the same states goes on from the last checkpoint; in batches there is one after each. Raises ConfigError for a
    stateful windowed bolt without `message_id` that keeps its windows in memory, DefinitionChangedError for states of another plan.

    >>> from windowing.topology.builder import TopologyBuilder
    >>> from windowing.topology.components import InputSpout
    >>> from windowing.topology.marking import bolt
    >>> @bolt(output="word string")
    ... def split(tuple):
    ...     return tuple["sentence"].split()
    >>> builder = TopologyBuilder("words")
    >>> _ = builder.set_spout("sentences", InputSpout("sentence string"))
    >>> _ = builder.set_bolt("split", split, 2).shuffle_grouping("sentences")
    >>> with LocalCluster(builder.build(), batches={"sentences": [[("the cow",)], [("jumped",)]]}) as cluster:
    ...     result = cluster.run()
    >>> result["split"], result.acked
    ([('the',), ('cow',), ('jumped',)], 2)
    """

    def __init__(
        self,
        topology: Topology | None = None,
        *,
        batches: Batches | None = None,
        clock: Clock | None = None,
        seed: int | None = None,
        outputs: Sequence[str] | None = None,
        states: StateProvider | None = None,
        state_path: str | Path | None = None,
    ) -> None:
        topology = self.topology = required(topology, "LocalCluster")
        for sentence in settings_without_effect(Runtime.CLUSTER, topology.config, topology.components.values()):
            logging.getLogger("windowing").warning("topology %r: %s", topology.name, sentence)
        self._batches = _checked_batches(topology, batches)
        self._hub = Hub(seed or 0, topology.config.acker_executors)
        super().__init__(topology.name, clock, self._hub, seed)
        self._hub.result.outputs = {name: [] for name in _outputs(topology, outputs)}
        self._states = StatesInUse(topology, states, state_path)
        try:
            self.crew: Crew = crew_of(topology, self._hub, batches is not None, self._states.provider)
        except BaseException:
            self._end("it could not be made")
            raise
        self._quiet_rounds = 0
        self._batch = 0

    @property
    def result(self) -> ClusterResult:
        """What came of the run so far."""
        return self._hub.result

    # -- running -------------------------------------------------------------------------------------------------------

    def run(self, drain: bool = True) -> ClusterResult:
        """Run until the input is over and everything that was emitted is acked or given up; drain the windows meanwhile.

        Without `drain` it ends with a checkpoint: windows stay open, for a cluster that is started again with the same states. A
        spout of `next_tuple` is taken to be over when it emits nothing; for one that waits use `run_for`. Raises BoltError.
        """
        for batch in range(max(map(len, self._batches.values()), default=0)):
            self.run_batch({spout: rows[batch] for spout, rows in self._batches.items() if batch < len(rows)})
        self._settle()
        while not self._dry() and self._pass_time():
            self._settle()
        self._undisturbed(self._finish if drain else self.checkpoint)
        return self.result

    def run_batch(self, rows: Mapping[str, Iterable[Any]]) -> None:
        """Let rows arrive, run until nothing moves and nothing that failed waits, then let every window make its turn."""
        self._begin()
        for spout, some in rows.items():
            self._feed(spout, some)
        self._batch += 1
        self._settle()
        self._undisturbed(self._turns)

    def checkpoint(self) -> bool:
        """Commit the states now; False if a hook refused, and they were rolled back. Nothing happens in a topology without."""
        self._begin()
        coordinator = self.crew.coordinator
        if coordinator is None:
            return True
        self._recovered()
        before = self.result.checkpoints
        self._guarded(coordinator.request)
        self._recovered()
        return self.result.checkpoints > before

    def run_for(self, span: Duration | timedelta) -> ClusterResult:
        """Run for this long by the clock, and leave everything as it is then.

        With a VirtualClock a round in which spouts emit takes a millisecond, or one that always emits would hold the time; what
        they have emitted is worked off at the end.
        """
        self._run_for(span)
        if isinstance(self.clock, VirtualClock):
            self._work_off()
        return self.result

    def step(self) -> bool:
        """Make one round; return whether anything moved."""
        moved = super().step()
        if moved:
            self._quiet_rounds = 0
        return moved

    def drain(self) -> None:
        """End the input, in topological order: the last windows fire, bolts with ticks get one more. A recovery that is under way,
        and whatever waits to be tried again, comes first; after a rollback meanwhile what was drained is drained again.
        """
        self._undisturbed(self._drain)

    @property
    def pending(self) -> int:
        """How many messages of spouts are in flight, or wait to be emitted again."""
        return sum(len(task.pending) for task in self.crew.spouts)

    def activate(self) -> None:
        """Let the spouts go on."""
        self._begin()
        for task in self.crew.spouts:
            self._guarded(task.activate)

    def deactivate(self) -> None:
        """Ask the spouts for no more tuples; what is in flight goes on."""
        self._begin()
        for task in self.crew.spouts:
            self._guarded(task.deactivate)

    # -- the loop ------------------------------------------------------------------------------------------------------

    @property
    def tasks(self) -> Sequence[Task]:
        return self.crew.tasks

    def _take_hold(self) -> None:
        self._states.begin()

    def _held(self) -> Iterable[Callable[[], object]]:
        return (self._states.release,)

    def _settle(self) -> None:
        """Make rounds until nothing moves and no failed message waits to be emitted again."""
        self._busy()
        while self._retrying() and self._pass_time():
            self._busy()

    def _work_off(self) -> None:
        """Make rounds until nothing moves, without asking the spouts."""
        asked = [task for task in self.crew.spouts if task.active]
        for task in asked:
            task.active = False
        self._busy()
        for task in asked:
            task.active = True

    def _emissions(self) -> int:
        return sum(task.emissions for task in self.crew.spouts)

    def _turns(self) -> None:
        for task in self.crew.windowed:
            self._guarded(task.turn)
            self._settle()
        self.checkpoint()

    def _finish(self) -> None:
        rollbacks = self._rollbacks
        self.drain()
        self.checkpoint()
        while self.pending and rollbacks == self._rollbacks and self._pass_time():
            self._busy()

    @property
    def _rollbacks(self) -> int:
        return 0 if self.crew.coordinator is None else self.crew.coordinator.rollbacks

    def _undisturbed(self, work: Callable[[], object]) -> None:
        """Do the work; do it again as long as a checkpoint is rolled back meanwhile, for what that held comes again."""
        rollbacks = -1
        while rollbacks != self._rollbacks:
            rollbacks = self._rollbacks
            work()
            self._settle()
            self._recovered()

    def _recovered(self) -> None:
        """Make rounds until nothing moves and the states are those of a checkpoint."""
        coordinator = self.crew.coordinator
        self._busy()
        while coordinator is not None and coordinator.spout.recovering and self._pass_time():
            self._busy()

    def _drain(self) -> None:
        self._recovered()
        self._settle()
        for task in self.crew.tasks:
            if self.crew.coordinator is not None:
                self._recovered()  # a task without its states has no windows to drain
            if isinstance(task, WindowedBoltTask):
                self._guarded(task.drain)
                self._settle()
            elif isinstance(task, BoltTask):
                task.last_tick()
                self._settle()

    def _retrying(self) -> bool:
        return any(task.pending.waiting for task in self.crew.spouts)

    def _dry(self) -> bool:
        return all(task.dry for task in self.crew.spouts)

    def _pass_time(self, end_ms: int | None = None) -> bool:
        poll_ms = None
        if not all(task.source.over for task in self.crew.spouts):
            poll_ms = self._hub.now_ms + self._poll_ms(until_end=end_ms is None)
        return self._loop.wait(self.crew.tasks, poll_ms, end_ms)

    def _poll_ms(self, until_end: bool) -> int:
        """Return when spouts that had nothing are asked again. At the end of the input, where only what failed may come again, they
        are asked more and more rarely while nothing moves: virtual time would cost a round a millisecond.
        """
        wait_ms = max(1, self.topology.config.sleep_spout_wait_ms)
        if not until_end or not isinstance(self.clock, VirtualClock):
            return wait_ms
        self._quiet_rounds += 1
        return min(wait_ms << min(self._quiet_rounds - 1, 20), max(wait_ms, _LONGEST_POLL_MS))

    def _feed(self, spout: str, rows: Iterable[Any]) -> None:
        sources = [task.source for task in self.crew.spouts if task.context.component == spout]
        inputs = [source for source in sources if isinstance(source, InputSource)]
        if not inputs:
            raise ConfigError(f"{shown(spout)} is no InputSpout of topology {self.topology.name!r}; feed one that is")
        some = list(listed(rows, f"InputSpout {spout!r} takes a list of rows as a batch"))
        schema = self.topology.component(spout).outputs[DEFAULT_STREAM].schema
        fitting = rows_in(some, schema, f"InputSpout {spout!r}, batch {self._batch}")
        for index, source in enumerate(inputs):
            source.feed(fitting[index :: len(inputs)])


def run_topology(
    topology: Topology,
    batches: Batches | None = None,
    *,
    clock: Clock | None = None,
    seed: int | None = None,
    outputs: Sequence[str] | None = None,
    states: StateProvider | None = None,
    state_path: str | Path | None = None,
    drain: bool = True,
) -> ClusterResult:
    """Run a topology from its first tuple to its last ack, and return everything that came of it. See LocalCluster.run."""
    with LocalCluster(
        topology, batches=batches, clock=clock, seed=seed, outputs=outputs, states=states, state_path=state_path
    ) as cluster:
        return cluster.run(drain)


def _outputs(topology: Topology, names: Sequence[str] | None) -> list[str]:
    declared = {
        output_name(component.id, stream): (component, stream)
        for component in topology.components.values()
        for stream in component.outputs
    }
    if names is None:
        return [name for name, (component, stream) in declared.items() if topology.ends(component, stream)]
    if isinstance(names, str):
        raise ConfigError(f"outputs is a list of names, got the text {names!r}; write outputs=[{names!r}]")
    for name in names:
        if name not in declared:
            raise ConfigError(f"there is no stream {shown(name)} to keep; {did_you_mean(str(name), declared)}")
    return list(names)


def _checked_batches(topology: Topology, batches: Batches | None) -> dict[str, list[Iterable[Any]]]:
    inputs = [spout.id for spout in topology.spouts if spout.kind is ComponentKind.INPUT]
    given = batches_by_name(batches, "InputSpout")
    for spout in given:
        if spout not in inputs:
            raise ConfigError(
                f"batches has rows for {shown(spout)}, which is no InputSpout of topology {topology.name!r}; "
                f"{did_you_mean(str(spout), inputs) if inputs else 'it has none'}"
            )
    return given
