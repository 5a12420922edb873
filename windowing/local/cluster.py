"""LocalCluster: runs a topology in one process, in one deterministic loop. This file also makes its tasks and opens its states.

    round   read the clock; each task once, in topological order: spouts emit, bolts empty their inboxes, ackers last
    batch   the rows of the inputs; rounds until no task has messages; then each windowed bolt makes its turn, in topological order
    run     the batches, or rounds until no task has messages; then the windows are drained, in topological order; then rounds until
            every message is acked or has failed for the last time

Before a cluster opens stored states, it compares their stored definition with its topology (execution/compatibility.py). Until the
first checkpoint everything may differ. After it, states without a definition are refused, because they cannot be checked.

Laws
- The same topology, input, seed and clock give the same run.
- With a VirtualClock nothing sleeps: when no task has messages, the clock is set to the next deadline.
- An error of a component ends the whole cluster.
- States are refused before anything is written, and the definition of a checkpoint is durable before the checkpoint is. A store
  that is refused is released at once, so that the next start can open it.

Source: Storm's `LocalCluster`; the loop is ours.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from windowing.acking.pending import RetryPolicy, SpoutPending
from windowing.errors import CheckpointError, ConfigError, quote
from windowing.execution.compatibility import DefinitionLocation, compare, of_states, read
from windowing.execution.support import Runtime, announce
from windowing.local.checkpoints import (
    DEFINITION,
    RECORD,
    CheckPointState,
    CheckpointTask,
    PagedWindowTask,
    RecoveredWindowTask,
    StatefulBoltTask,
)
from windowing.local.clock import Clock, VirtualClock
from windowing.local.loop import LoopedCluster, checked_seed, runs_loop
from windowing.local.router import ClusterResult, Router, StreamRoutes
from windowing.local.spouts import (
    Batches,
    InputSource,
    SpoutTask,
    UnackedReasons,
    UserSource,
    batches_by_name,
    is_list,
    listed,
    require_inputs,
    rows_in,
)
from windowing.local.tasks import AckerTask, BoltTask, ColumnarBoltTask, ComponentTask, Task, TaskParts
from windowing.local.windowed import WindowedBoltTask, streams_of
from windowing.schema.checks import DEFAULT_STREAM, did_you_mean, spelled
from windowing.stores.pages import PersistentWindow
from windowing.stores.states import state_provider
from windowing.topology.bolts import ComponentKind
from windowing.topology.components import TopologyContext
from windowing.topology.dead_letters import DEAD_LETTERS
from windowing.topology.plan import Component, Topology, output_name, required
from windowing.topology.state import NEVER, StateProvider
from windowing.topology.window_task import warn_of_no_times
from windowing.windows.config import WindowConfig, refuse_drain
from windowing.windows.executor import WindowedBoltExecutor
from windowing.windows.measures import Count, Duration

_log = logging.getLogger("windowing")


# -- ClusterTasks ----------------------------------------------------------------------------------------------------------------


class ClusterTasks:
    """All tasks of a topology in the order of a round (`tasks`), and some of them by kind.

    states: the store of the states, for a topology with checkpoints. roots: the sources of InputSpouts, by name. Raises ConfigError
    for a bolt whose state cannot be stored there, and for a setting of a spout that has no effect on its batches.
    """

    def __init__(
        self,
        topology: Topology,
        router: Router,
        states: StateProvider | None,
        roots: Mapping[str, list[Any]],
    ) -> None:
        self._topology, self._router, self._states, self._roots = topology, router, states, roots
        self.unacked = UnackedReasons(topology)
        self._inboxes: dict[str, list[deque[Any]]] = {
            component.id: [deque() for _ in range(component.parallelism)] for component in topology.components.values()
        }
        tasks = [
            self._task(topology.component(name), index)
            for name in topology.order
            for index in range(topology.component(name).parallelism)
        ]
        for task in tasks:
            if task.context.task_index == 0 and task.outbox[DEAD_LETTERS].is_read:
                router.dead_letters[task.context.component] = task.outbox[DEAD_LETTERS]
        self.spouts = [task for task in tasks if isinstance(task, SpoutTask)]
        self.windowed = [task for task in tasks if isinstance(task, WindowedBoltTask)]
        inboxes = {spout.id: spout.inbox for spout in self.spouts}
        self.ackers = [
            AckerTask(router, len(tasks) + 1 + index, index, topology.config, inboxes)
            for index in range(len(router.ackers))
        ]
        self.coordinator: CheckpointTask | None = None
        if states is not None:
            bolts = [task for task in tasks if not isinstance(task, SpoutTask)]
            context = TopologyContext("__checkpoint", 0, 1, topology.config)
            self.coordinator = CheckpointTask(router, context, states, bolts, of_states(topology))
        self.tasks: list[Task] = [*tasks, *([self.coordinator] if self.coordinator else ()), *self.ackers]

    def _task(self, component: Component, index: int) -> ComponentTask:
        topology, router = self._topology, self._router
        config = topology.config_of(component.id)
        context = TopologyContext(component.id, index, component.parallelism, config, topology.task_ids)
        outbox = {
            stream: StreamRoutes(router, topology, component.id, index, stream, self._inboxes)
            for stream in component.outputs
        }
        parts = TaskParts(router, context, self._inboxes[component.id][index], outbox, component)
        if component.is_spout:
            return self._spout(parts, config.max_spout_pending)
        tick_ms = config.tick_tuple_freq_ms if component.window is None else None
        if self._states is not None and component.checkpointed:
            return self._checkpointed(component, index, parts, tick_ms, self._states)
        if component.window is not None:
            return WindowedBoltTask(parts, schemas=topology.schemas_read_by(component).values())
        if component.declaration.columnar is not None:
            return ColumnarBoltTask(parts, topology.schemas_read_by(component))
        return BoltTask(parts, tick_ms)

    def _spout(self, parts: TaskParts, limit: int | None) -> SpoutTask:
        component = parts.component
        if self._router.in_batches and component.kind is ComponentKind.INPUT:
            if component.config.max_spout_pending is not None:
                raise ConfigError(
                    f"InputSpout {component.id!r} says max_spout_pending={component.config.max_spout_pending}, but its rows are "
                    "handed over in batches, and a batch comes whole; leave it out, or give rows by run_batch without batches="
                )
            limit = None  # tuples that wait in windows for the batch's turn must not block the rest of the batch
        pending = SpoutPending(limit, RetryPolicy.of(self._topology.config))
        if component.id not in self._roots:
            return SpoutTask(parts, pending, self.unacked)
        from windowing.local.sources import RootSource  # needs Arrow

        read = partial(RootSource, self._roots[component.id], parts.context.task_index)
        return SpoutTask(parts, pending, self.unacked, read)

    def _checkpointed(
        self, component: Component, index: int, parts: TaskParts, tick_ms: int | None, states: StateProvider
    ) -> ComponentTask:
        window = component.window
        state = states.state(component.id, index) if component.stateful else None
        if window is None:
            assert state is not None
            return StatefulBoltTask(parts, tick_ms, state)
        streams = tuple(streams_of(component).values())
        if window.config.max_events_in_memory is not None:
            pages = states.pages(component.id, index)
            pages.task_ids = self._topology.task_ids
            kept = PersistentWindow(window.config, pages, streams, component.id)
            return PagedWindowTask(parts, window=kept, state=state)
        rows = states.state(component.id, index, "windows")
        executor = WindowedBoltExecutor(window.config, streams, component.id, sequenced=True, keep_tuples=True)
        return RecoveredWindowTask(parts, executor=executor, state=state, rows=rows)


# -- LocalCluster ----------------------------------------------------------------------------------------------------------------


_LONGEST_POLL_MS = 1000


class LocalCluster(LoopedCluster):
    """Runs a topology in one process. A context manager: leaving it closes spouts and bolts.

    Any thread may call its methods. Those that run the loop (`run`, `run_for`, `run_batch`, `step`, `drain`, `checkpoint`) take
    turns; `activate`, `deactivate` and `close` are done between two rounds by the thread that runs it.

    batches: the rows of every InputSpout, batch by batch; windows on event time then make their turns at the ends of batches, as
    they do if all rows come by `run_batch` (without max_spout_pending). Rows for a spout of your own replace it, as do its sources.
    sources: instead of batches, a PartitionedSpout (windowing.queues) for each InputSpout; for a spout with several streams, a
    mapping of streams to PartitionedSpouts. A source that takes acks gets the ack of a batch when all its rows are done; in a
    topology with states, when the checkpoint that holds them is committed.
    clock: default is the system's clock. seed: None keeps the fixed order of steps; a number shuffles the steps, always in the same
    way for the same number, to find bolts that depend on the order. outputs: the streams whose rows are kept, as "count" or
    "count.late"; default is all streams that no bolt reads.
    states: the store of states and windows that outlive the process; default is the one that `topology.state.provider` names.
    state_path: store them in this SQLite file instead. A store passed as `states` stays open. A topology that is started again with
    the same states continues from the last checkpoint; with batches there is a checkpoint after each.
    Raises ConfigError for a stateful windowed bolt without `message_id` that keeps its windows in memory, and
    DefinitionChangedError for states of another plan.

    >>> from windowing import InputSpout, TopologyBuilder, bolt
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

    @spelled
    def __init__(
        self,
        topology: Topology | None = None,
        batches: Batches | None = None,
        *,
        sources: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        seed: int | None = None,
        outputs: Sequence[str] | None = None,
        states: StateProvider | None = None,
        state_path: str | Path | None = None,
    ) -> None:
        declared = required(topology, "LocalCluster")
        given = batches_by_name(
            batches, "InputSpout", lambda name: require_inputs(declared, [name], "batches has rows for")
        )
        self._ahead = deque(
            {spout: rows[batch] for spout, rows in given.items() if batch < len(rows)}
            for batch in range(max(map(len, given.values()), default=0))
        )
        topology = declared.fed(given, whole=True)
        topology = self.topology = topology.fed(sources if isinstance(sources, Mapping) else ())
        log = _log.warning
        announce(Runtime.CLUSTER, log, topology.name, topology.config, topology.components.values())
        by_run_batch = (
            batches is None and sources is None and all(spout.kind is ComponentKind.INPUT for spout in topology.spouts)
        )
        self._without_rows = by_run_batch and states is None and state_path is None
        limited = [spout.id for spout in topology.spouts if topology.config_of(spout.id).max_spout_pending is not None]
        in_batches = batches is not None or (by_run_batch and not limited)
        sentences = _without_effect_on_batches(declared, given) if in_batches else ()
        for sentence in _advancing_within_batches(topology, limited) if by_run_batch and limited else sentences:
            log("topology %r: %s", topology.name, sentence)
        router = Router(checked_seed(seed) or 0, topology.config.acker_executors)
        router.in_batches = in_batches
        router.result.outputs = {name: [] for name in _outputs(topology, outputs)}
        super().__init__(topology.name, clock, router, seed)
        roots: Mapping[str, list[Any]] = {}
        if sources is not None:
            from windowing.local.sources import roots_of  # needs Arrow

            roots = roots_of(topology, sources, batches)
        self._read = [each for streams in roots.values() for each in streams]
        self._closes += [each.close for each in self._read]
        try:
            self._states = self._opened_states(states, state_path)
            self.task_set = ClusterTasks(topology, router, self._states, roots)
        except BaseException:
            self._end("it could not be made")
            raise
        self.tasks = self.task_set.tasks
        self._batch = 0

    def _opened_states(self, given: StateProvider | None, path: str | Path | None) -> StateProvider | None:
        """Return the states of the topology, None without any; states that are made here are closed at the end.

        Raises ConfigError for a provider or a path that the topology does not need, or for both; DefinitionChangedError for states
        of another definition; and the store's error for a file that it cannot use.
        """
        topology = self.topology
        if given is not None and path is not None:
            raise ConfigError(
                f"topology {topology.name!r} was given both states= and state_path={quote(str(path))}; leave one of the two out"
            )
        if not topology.stateful:
            if given is not None or path is not None:
                what = "states=" if path is None else f"state_path={quote(str(path))}"
                raise ConfigError(
                    f"topology {topology.name!r} keeps nothing in {what}: no bolt has init_state or max_events_in_memory=; leave "
                    "it out, or give a bolt a state"
                )
            return None
        states = state_provider(topology.config.state_provider, topology.name, path) if given is None else given
        self._closes.insert(0, states.close if given is None else states.forget)
        if CheckPointState.of(states.record(RECORD)).txid == NEVER:
            return states
        stored, what = states.record(DEFINITION), f"the stored states of topology {topology.name!r}"
        if stored is None:
            raise CheckpointError(
                f"{what} have checkpoints but no definition of what they are of; restore all of the store from one copy, or begin "
                "with new states; nothing was reset"
            )
        place = DefinitionLocation(
            what,
            f"the definition of {what}",
            "restore the old definition, or begin with new states (another state_path=, say); nothing was reset",
            "restore the store from a copy, or use the version that wrote it; nothing was reset",
            record=True,
        )
        compare(read(stored, place), of_states(topology), place)
        return states

    @property
    def result(self) -> ClusterResult:
        """The results of the run so far."""
        return self._router.result

    # -- running -------------------------------------------------------------------------------------------------------

    @runs_loop
    def run(self, drain: bool = True) -> ClusterResult:
        """Run until the input has ended, the windows are drained, and every message is acked or given up.

        With `drain=False` the run ends with a checkpoint instead, and windows stay open for a later cluster with the same states. A
        spout with `next_tuple` counts as ended when it emits nothing; for a spout that waits use `run_for`. The rows of batches are
        emitted once, by the first run; sources are read until the windows are drained. Raises BoltError; ConfigError if there is
        nothing to run: all spouts are InputSpouts, and no batches, sources or stored states were given, nor a batch by `run_batch`.
        """
        self._report_ended()
        if self._without_rows and not self._batch:
            raise ConfigError(
                f"topology {self.topology.name!r} gets all its rows from outside, and none are given; give "
                f"batches={{{self.topology.spouts[0].id!r}: [[row, row], [row]]}} or sources=, or feed a LocalCluster by run_batch"
            )
        if drain:
            refuse_drain(each.window.config for each in self.topology.bolts if each.window is not None)
        while self._ahead:
            self.run_batch(self._ahead.popleft())
        began_s = time.monotonic()
        self._settle()
        stalled: list[SpoutTask] = []
        while not all(task.dry for task in self.task_set.spouts) and not stalled and self._pass_time():
            self._settle()
            stalled = self._stalled()
            self._report_endless(began_s)
        for task in stalled:
            task.active = False  # the drain closes the windows, so the rest of its tuples would be late
        self._report_silence()
        for _, tasks in groupby(self.task_set.windowed, key=lambda task: task.context.component):
            warn_of_no_times([task.windows for task in tasks])
        self._undisturbed(self._finish if drain else self.checkpoint)
        for task in stalled:
            task.active = True
        if drain:
            self._report_not_again()
        return self.result

    @runs_loop
    def run_batch(self, rows: Mapping[str, Iterable[Any]]) -> None:
        """Emit rows, run until no task has messages and no failed message waits for its retry, then make a turn of every window.

        rows: lists of rows by the name of their InputSpout. With states, or windows on disk, a checkpoint follows: when this call
        has returned, it holds the batch, unless a hook refused it. Raises BoltError.
        """
        if not isinstance(rows, Mapping):
            raise ConfigError(
                f"run_batch takes rows by the name of their InputSpout, got {quote(rows)}; write {{'name': [row, row]}}"
            )
        self._begin()
        self._feed(rows)
        self._batch += 1
        self._settle()
        self._undisturbed(self._turns)

    @runs_loop
    def checkpoint(self) -> bool:
        """Commit the states, if there are any; return False if a hook refused and they were rolled back."""
        self._begin()
        coordinator = self.task_set.coordinator
        if coordinator is None:
            return True
        self._recovered()
        before = self.result.checkpoints
        self._guarded(coordinator.take)
        self._recovered()
        return self.result.checkpoints > before

    @runs_loop
    def run_for(self, span: Duration | timedelta) -> ClusterResult:
        """Run for `span` of the clock's time, then stop without a drain or a checkpoint.

        With a VirtualClock each round in which spouts emit takes one millisecond; otherwise an endless spout would stop time. At
        the end all emitted tuples are handled; with another clock, sources get the acks of what was executed by then. The rows of
        batches are emitted by `run`.
        """
        if self._ahead:
            _log.warning("topology %r: run_for emits no rows of batches=; call run()", self.topology.name)
        self._report_ended()
        self._run_for(span)
        if self._over is not None:
            return self.result
        paused = [task for task in self.task_set.spouts if task.active]
        for task in paused:
            task.active = False
        if isinstance(self.clock, VirtualClock):
            self._busy()
        self._take_acks()
        for task in paused:
            task.active = True
        return self.result

    @runs_loop
    def drain(self) -> None:
        """End the input, in topological order: the last windows fire, bolts with ticks get one more tick. Then commit the states.

        Recoveries and retries that are under way finish first. If states are rolled back meanwhile, the drain is repeated.
        """
        self._undisturbed(self._drain)

    @property
    def pending(self) -> int:
        """The number of messages that are in flight or wait to be emitted again."""
        return sum(len(task.pending) for task in self.task_set.spouts)

    def _switch(self, active: bool) -> None:
        self._begin()
        for task in self.task_set.spouts:
            self._guarded(task.switch, active)

    # -- the loop ------------------------------------------------------------------------------------------------------

    def _take_acks(self) -> None:
        """Deliver all acks on their way to the spouts, so that sources do not give again what was executed. No bolt steps."""
        tasks = [*self.task_set.ackers, *self.task_set.spouts]
        while any(task.inbox for task in tasks):
            for task in tasks:
                self._guarded(task.step, None)
        for roots in self._read:
            self._guarded(roots.settle)

    def _report_ended(self) -> None:
        if any(roots.ended for roots in self._read):
            _log.warning(
                "topology %r: its windows were drained, and its sources have ended with them: rows that have come since stay "
                "there; make another LocalCluster for these, or end the earlier run by run(drain=False)",
                self.topology.name,
            )

    def _report_silence(self) -> None:
        """Log the spouts with a `next_tuple` that have emitted nothing at all: they may wait for their tuples."""
        spouts = [task for task in self.task_set.spouts if task.active and isinstance(task.source, UserSource)]
        emitted = {task.context.component for task in spouts if task.emissions}
        for name in sorted({task.context.component for task in spouts} - emitted):
            _log.warning(
                "topology %r: spout %r emitted nothing when it was called, which run() takes as the end of its input; for a spout "
                "that waits for its tuples, call run_for(hours(1)), say",
                self.topology.name,
                name,
            )

    def _report_not_again(self) -> None:
        """Log the spouts that took failed messages back and did not emit them again: they may wait before they do."""
        counts: dict[str, int] = {}
        for task in self.task_set.spouts:
            counts[task.context.component] = counts.get(task.context.component, 0) + task.pending.not_again()
        for name, count in counts.items():
            if count:
                _log.warning(
                    "topology %r: run() ends with %d failed messages that spout %r took back by fail(message_id) and did not emit "
                    "again. If it waits before it does: next_tuple emitted nothing, which run() takes as the end of the input; "
                    "call run_for(hours(1)), say, or leave out fail, and its task emits them after windowing.retry.delay.ms",
                    self.topology.name,
                    count,
                    name,
                )

    def _stalled(self) -> list[SpoutTask]:
        """Return the spouts that have not ended if each is full for so long that none of its messages can be acked or fail: nothing
        is due but commits and advances of event time, which have come to nothing. Log them.
        """
        config, windows = self.topology.config, self.task_set.windowed
        spouts = [task for task in self.task_set.spouts if not task.dry]
        if any(task.pending.room > 0 for task in spouts):
            return []
        over_time = [task for task in windows if task.config.event_time]
        every_ms = [config.state_checkpoint_interval_ms]
        every_ms += [task.config.watermark_interval_ms + (task.config.idle_timeout_ms or 0) for task in over_time]
        patience_ms = max(config.message_timeout_ms, 2 * max(every_ms))
        if any(task.full_ms < patience_ms for task in spouts):
            return []
        others = [task for task in self.tasks if task not in over_time and not isinstance(task, CheckpointTask)]
        if self._nearest_ms(task.next_deadline_ms() for task in others) is not None:
            return []
        for name in dict.fromkeys(task.context.component for task in spouts):
            _log.warning(
                "topology %r: run() stops spout %r before its end: the messages in flight are as many as max.spout.pending allows, "
                "and nothing is due that could ack one of them",
                self.topology.name,
                name,
            )
        return spouts

    def _take_hold(self) -> None:
        if self._states is not None:
            self._states.forget()  # changes that an earlier cluster has not prepared
        for roots in self._read:
            roots.begin()

    def _settle(self) -> None:
        """Make rounds until no task has messages and no failed message waits for its retry."""
        self._busy()
        while any(task.pending.waiting for task in self.task_set.spouts) and self._pass_time():
            self._busy()

    def _emissions(self) -> int:
        return sum(task.emissions for task in self.task_set.spouts)

    def _turns(self) -> None:
        # A round visits all tasks, so there is one for each bolt and not for each of its tasks.
        for _, found in groupby(self.task_set.windowed, key=lambda task: task.context.component):
            tasks = list(found)
            if tasks[0].turns_by_batch:  # then all tasks have one watermark, as on Spark
                first, *others = [task.executor.generator for task in tasks]
                for each in others:
                    first.merge(each)
                for each in others:
                    each.merge(first)
            for task in tasks:
                if not task.windows.must_wait(self._router.now_ms):
                    self._guarded(task.turn)
            self._settle()
        self.checkpoint()

    def _finish(self) -> None:
        """Drain, then go on until every message is acked or given up; without timeouts, until nothing can come of the others."""
        rollbacks = self._router.rollbacks
        self.drain()
        settings, is_reported = self.topology.config, False
        patient_ms = self._router.now_ms + settings.message_timeout_ms
        while self.pending and rollbacks == self._router.rollbacks:
            before, is_awaited = self._settled(), self._is_awaited()
            if is_awaited:
                self._pass_time()
            else:
                self.checkpoint()  # acks may wait for it
            self._busy()
            if not is_awaited and before == self._settled():
                self._report_unsettled("has ended with")
                return
            if not (settings.timeouts or is_reported) and self._router.now_ms >= patient_ms:
                is_reported = True
                self._report_unsettled("still waits, at the end of its input, for")

    def _settled(self) -> tuple[int, ...]:
        return self.result.acked, self.result.failures, self._router.rollbacks

    def _is_awaited(self) -> bool:
        """Return whether a spout has not ended, or a task has something due by which a message may be acked or fail."""
        if not all(task.dry for task in self.task_set.spouts):
            return True
        deadlines = [task.pending.next_retry_ms() for task in self.task_set.spouts]
        others = (task for task in self.tasks if not isinstance(task, SpoutTask | CheckpointTask))
        return self._nearest_ms([*deadlines, *(task.next_deadline_ms() for task in others)]) is not None

    def _report_unsettled(self, what: str) -> None:
        said = "topology %r %s %d messages that are neither acked nor failed, and without timeouts; %s"
        _log.warning(said, self.topology.name, what, self.pending, self.task_set.unacked.forgotten_acks())

    def _undisturbed(self, work: Callable[[], object]) -> None:
        """Do the work; repeat it as long as a checkpoint is rolled back meanwhile, because the rolled back tuples come again."""
        rollbacks = -1
        while rollbacks != self._router.rollbacks:
            rollbacks = self._router.rollbacks
            work()
            if self.task_set.coordinator is not None:
                self._settle()
                self._recovered()

    def _recovered(self) -> None:
        """Make rounds until no task has messages and no checkpoint waits for its retry."""
        coordinator = self.task_set.coordinator
        self._busy()
        while coordinator is not None and coordinator.refused is not None and self._pass_time():
            self._busy()

    def _drain(self) -> None:
        for roots in self._read:
            roots.ended = True
        self._recovered()
        self._settle()
        for task in self.tasks:
            if isinstance(task, WindowedBoltTask):
                self._guarded(task.drain)
                self._settle()
            elif isinstance(task, BoltTask):
                task.last_tick()
                if task.inbox:
                    self._settle()
        self.checkpoint()

    def _pass_time(self, end_ms: int | None = None) -> bool:
        poll_ms = None
        if any(task.is_polled for task in self.task_set.spouts):
            poll_ms = self._router.now_ms + self._poll_ms(until_end=end_ms is None)
        return self._wait(self.tasks, poll_ms, end_ms)

    def _poll_ms(self, until_end: bool) -> int:
        """Return after how long spouts that had no tuple are called again.

        At the end of the input, when only failed messages can follow, the interval doubles while no task has messages; with virtual
        time each millisecond would otherwise cost a round.
        """
        polled = min(task.source.poll_ms for task in self.task_set.spouts if task.is_polled)
        wait_ms = max(polled, self.topology.config.sleep_spout_wait_ms)
        if not until_end or not isinstance(self.clock, VirtualClock):
            return wait_ms
        self._quiet_polls += 1
        return min(wait_ms << min(self._quiet_polls - 1, 20), max(wait_ms, _LONGEST_POLL_MS))

    def _feed(self, rows: Mapping[str, Iterable[Any]]) -> None:
        """Feed the rows of a batch to their spouts, once all of them are checked. Raises ConfigError."""
        fed: list[tuple[InputSource, list[tuple[Any, ...]]]] = []
        for spout, given in rows.items():
            tasks = [task for task in self.task_set.spouts if task.context.component == spout]
            inputs = [task.source for task in tasks if isinstance(task.source, InputSource)]
            if not inputs:
                own = f"; to replace this spout, give LocalCluster batches={{{quote(spout)}: []}}" if tasks else ""
                raise ConfigError(
                    f"{quote(spout)} is no InputSpout of topology {self.topology.name!r}; feed one that is{own}"
                )
            some = list(listed(given, f"InputSpout {spout!r} takes a list of rows as a batch"))
            outputs = tasks[0].component.outputs
            emitted = [stream for stream in outputs if not outputs[stream].dead]
            others = [stream for stream in emitted if stream != DEFAULT_STREAM and self.topology.readers(spout, stream)]
            if others or DEFAULT_STREAM not in emitted:
                raise _not_fed(spout, emitted, others)
            fitting = rows_in(some, outputs[DEFAULT_STREAM].schema, f"InputSpout {spout!r}, batch {self._batch}")
            fed += [(source, fitting[index :: len(inputs)]) for index, source in enumerate(inputs)]
        for source, part in fed:
            source.feed(part)


def _not_fed(spout: str, emitted: Sequence[str], others: Sequence[str]) -> ConfigError:
    """Return the error for a batch of a spout with streams that no row of the batch can go to."""
    streams = ", ".join(f"{stream!r}: source" for stream in emitted)
    return ConfigError(
        f"a batch of rows goes to the stream {DEFAULT_STREAM!r} of spout {spout!r}, whose bolts read "
        f"{', '.join(map(repr, others)) or 'none'} beside it; give LocalCluster sources={{{spout!r}: {{{streams}}}}}"
    )


@spelled
def run_topology(
    topology: Topology,
    batches: Batches | None = None,
    *,
    sources: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
    seed: int | None = None,
    outputs: Sequence[str] | None = None,
    states: StateProvider | None = None,
    state_path: str | Path | None = None,
    drain: bool = True,
) -> ClusterResult:
    """Run a topology from its first tuple to its last ack, and return all results: `result["count"]` are the rows of the bolt
    `count`, `result["count.late"]` those of its stream `late`.

    The arguments are those of LocalCluster; drain: fire the last windows at the end. Give a VirtualClock, and nothing sleeps.
    Raises what LocalCluster and its `run` raise.
    """
    with LocalCluster(
        required(topology, "run_topology"),
        batches=batches,
        sources=sources,
        clock=clock,
        seed=seed,
        outputs=outputs,
        states=states,
        state_path=state_path,
    ) as cluster:
        return cluster.run(drain)


def _advancing_within_batches(topology: Topology, limited: Sequence[str]) -> Iterator[str]:
    """Yield a sentence if windows advance also within the rows of `run_batch`, which wait for the max_spout_pending of spouts."""
    bolts = [bolt.id for bolt in topology.bolts if bolt.window is not None and bolt.window.config.event_time]
    if bolts:
        yield (
            f"max_spout_pending of spout {', '.join(map(repr, limited))} lets rows of run_batch wait, so the windows of bolt "
            f"{', '.join(map(repr, bolts))} advance by the clock too, each task with a watermark of its own; leave it out, and "
            "they advance after each batch"
        )


def _without_effect_on_batches(topology: Topology, given: Container[str]) -> Iterator[str]:
    """Yield a sentence for each option that has no effect on rows in batches, which the spouts `given` get from `batches=`."""
    if topology.config.max_spout_pending is not None:
        yield "topology.max.spout.pending has no effect on the rows of batches=: a batch comes whole"
    usual_ms = WindowConfig(length=Count(1), slide=Count(1)).watermark_interval_ms
    for name, component in topology.components.items():
        if name in given and component.config.max_spout_pending is not None:
            yield f"max_spout_pending= of spout {name!r} has no effect on the rows of batches=: a batch comes whole"
        if component.window is not None and component.window.config.watermark_interval_ms != usual_ms:
            yield f"watermark_interval= of bolt {name!r} has no effect: windows advance after each batch"


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
    if not is_list(names):
        raise ConfigError(f"outputs is a list of names, got {quote(names)}; write outputs=['count', 'count.late']")
    for name in names:
        if name not in declared:
            raise ConfigError(f"there is no stream {quote(name)} to keep; {did_you_mean(str(name), declared)}")
    return list(names)
