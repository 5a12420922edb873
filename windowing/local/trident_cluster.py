"""TridentCluster: runs a Trident topology in one process, deterministically, with several batches under way.

    master, coordinators, emitters, groups, acker     tasks with inboxes, on the loop of LocalCluster (local/loop.py): TridentTasks
    records    of the coordinator, metadata, ends of partitions, windows     durable in state_path
    states     the states of the topology, each in its own store

MasterTask performs the effects of MasterBatchCoordinator and reports the ends of tuple trees to it:

    SaveRecord the record, durable                    AskReady  the coordinators of all spouts, answered at once
    $batch    to the coordinator of every spout       $commit   to committer emitters and to groups that commit
    $success  to all                                  Stop      a FailedException ends the run

Laws
- The states and the rows of the sinks equal those of TridentRun, which runs one batch after the other. Failures and retries, the
  order of steps, kills, restarts and batches under way at the same time change neither; these last change what a query reads.
- The same plan, spouts, seed and clock give the same run. With a VirtualClock nothing sleeps.
- An error other than FailedException ends the cluster, unless it is of a request; a new cluster continues from the records and
  states. A request is answered while no batch is under way, from states that hold whole batches.
- The rows of a batch reach its sinks after its last commit was acked and before the record says so. In a plan with windows, the
  time of a batch and whether it drains are durable before the batch is sent, so an attempt after a restart moves the windows in
  the same way.
- Before the first batch, the stored definition of the windows is compared with the plan; another one, or a missing one after
  batches, is refused, and so is a stream whose position another kind of spout has stored. Each state is compared with the records,
  partition by partition (trident/fence.py). None of this writes anything.

Source: what Storm's `LocalCluster` does with a `TridentTopology`; the loop is ours.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import Any, ClassVar

from windowing.acking.acker import AckedRoots, Failed, Reason
from windowing.acking.pending import RetryPolicy
from windowing.errors import ConfigError, DrainedCheckpointError, FailedException, printable, quote
from windowing.execution.plan import Stage
from windowing.execution.support import Runtime, announce
from windowing.local.clock import Clock
from windowing.local.loop import LoopedCluster, checked_seed, runs_loop
from windowing.local.spouts import Batches, batches_by_name, rows_in
from windowing.local.tasks import AckerTask, Task, tree_timeout_ms
from windowing.local.trident_records import (
    compare_streams,
    coordinator_state,
    keep_definition,
    owners_of,
    refuse_lost_record,
    root_of,
)
from windowing.local.trident_spouts import CoordinatorTask, EmitterTask, Given, RequestTask, StreamSpout
from windowing.local.trident_tasks import (
    BatchMessage,
    CommitMessage,
    GroupTask,
    SuccessMessage,
    TridentResult,
    TridentRouter,
)
from windowing.schema.checks import did_you_mean, spelled, uncallable
from windowing.schema.types import Row
from windowing.stores.sqlite import SqliteRecordStore
from windowing.topology.components import TopologyContext
from windowing.topology.config import TopologyConfig
from windowing.topology.dead_letters import DEAD_LETTERS
from windowing.topology.user_code import file_of, user_code_error
from windowing.topology.window_task import WindowTask, warn_of_no_times
from windowing.trident.coordinator import (
    AskReady,
    CoordinatorConfig,
    CoordinatorStream,
    EmitOnStream,
    MasterBatchCoordinator,
    Readiness,
    SaveRecord,
    Status,
    Stop,
    StoredRecord,
)
from windowing.trident.executors import BatchId
from windowing.trident.kinds import TransactionAttempt
from windowing.trident.plan import SpoutNode, TaskId, TridentPlan, coord_specs
from windowing.trident.processors import call_hook, partition_of
from windowing.trident.spouts import ICommitterTridentSpout
from windowing.trident.streams import TridentTopology, planned
from windowing.trident.transactional_state import (
    MemoryRecordStore,
    RecordStore,
    RotatingTransactionalState,
    TransactionalState,
    checked_records,
    part_of,
)
from windowing.windows.measures import Duration

# -- MasterTask ------------------------------------------------------------------------------------------------------------------


SinkWriter = Callable[[int, list[Row]], Any]
"""A function of (txid, rows) that gets the rows of a committed batch. After a crash it may be called again with the same txid."""


class MasterTask(Task):
    """The task of the MasterBatchCoordinator.

    until_end: whether a spout of single tuples that emits nothing counts as ended. drains: whether the end of the input closes the
    windows. committers, readers: the inboxes of the tasks that take part in the commit, and of all tasks, with their batch groups.
    """

    router: TridentRouter

    def __init__(
        self, router: TridentRouter, id: int, plan: TridentPlan, config: CoordinatorConfig, state: TransactionalState
    ) -> None:
        super().__init__(router, TopologyContext(plan.name, 0, 1, plan.config), id, router.inbox(MASTER))
        self.spouts: list[CoordinatorTask] = []
        self.committers: list[tuple[deque[Any], str]] = []
        self.readers: list[tuple[deque[Any], str]] = []
        self.writers: Mapping[str, SinkWriter] = {}
        self.until_end = self.drains = False
        self.begun = 0
        self.report: Callable[..., None] = lambda *_: None
        """Logs a warning: of each attempt that has failed, but not of those that were dropped with it, and of a skipped batch."""
        self._plan, self._config, self._state = plan, config, state
        self._stored = StoredRecord(state)
        self._windowed = bool(plan.windows()["windows"])
        self._roots: dict[int, tuple[CoordinatorStream, TransactionAttempt]] = {}
        self.machine: MasterBatchCoordinator
        self._stamps: RotatingTransactionalState

    # -- the loop ------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        record = self._stored.load()
        keep_definition(self._plan, self._state, record)
        self.machine = MasterBatchCoordinator(self._config, record)
        self._stamps = RotatingTransactionalState(self._state, "stamps")
        for spout in self.spouts:
            spout.settle(record.current - 1)

    def tick(self) -> None:
        self._coordinate(self.machine.tick(self.router.now_ms))

    def next_deadline_ms(self) -> int | None:
        return self.machine.next_deadline_ms()

    def switch(self, active: bool) -> None:
        machine = self.machine
        self._coordinate((machine.activate if active else machine.deactivate)(self.router.now_ms))

    def handle(self, message: AckedRoots | Failed) -> None:
        for root in (message.root,) if isinstance(message, Failed) else message.roots:
            if root in self._roots:  # else a tree of an earlier run, or one that has already ended
                self._end(root, message)

    def _end(self, root: int, message: AckedRoots | Failed) -> None:
        machine, now_ms = self.machine, self.router.now_ms
        stream, attempt = self._roots.pop(root)
        if isinstance(message, Failed):
            cause = str(message.reason)
            if message.reason is Reason.TIMEOUT:
                cause = f"its {stream.value} took too long; it was last seen in {message.seen}"
            stale = machine.stale
            found = machine.failed(stream, attempt, now_ms, cause)
            if machine.stale == stale:
                self.router.trident.failures += 1
                self.report(
                    "topology %r: attempt %s at a batch failed: %s",
                    self.context.component,
                    attempt,
                    printable(cause, 500),
                )
            self._coordinate(found)
            return
        if stream is CoordinatorStream.COMMIT and (attempt, Status.COMMITTING) in machine.under_way:
            self._hand_out(attempt)
        self._coordinate(machine.acked(stream, attempt, now_ms))

    def resume(self, until_end: bool, drains: bool) -> None:
        """Run in this way from now on; spouts that have ended are asked again, unless the task is deactivated."""
        self.until_end, self.drains = until_end, drains
        if self._drained() is None:
            for spout in self.spouts:
                spout.poll_again()
        if self.machine.active:
            self.switch(True)

    # -- effects -------------------------------------------------------------------------------------------------------

    def _coordinate(self, found: Iterator[Any]) -> None:
        asked = self._perform(found)
        while asked is not None:
            asked = self._perform(self.machine.answered(asked, self._answers(asked), self.router.now_ms))

    def _perform(self, found: Iterator[Any]) -> int | None:
        """Perform effects; return the txid of an AskReady, if there is one."""
        asked = None
        for effect in found:
            if isinstance(effect, SaveRecord):
                self._stored.save(effect.record)
            elif isinstance(effect, AskReady):
                asked = effect.txid
            elif isinstance(effect, Stop):
                raise FailedException(str(effect))
            elif effect.stream is CoordinatorStream.BATCH:
                self._begin(effect)
            elif effect.stream is CoordinatorStream.COMMIT:
                messages = ((inbox, BatchId(group, effect.attempt)) for inbox, group in self.committers)
                self._begin_tree(effect, [(inbox, partial(CommitMessage, batch)) for inbox, batch in messages])
            else:
                self._succeed(effect.attempt)
        return asked

    def _begin(self, effect: EmitOnStream) -> None:
        attempt = effect.attempt
        self.begun += 1
        self.router.stamps[attempt.txid] = self._stamp(attempt.txid)
        begun = partial(BatchMessage, attempt, effect.after, effect.skip)
        self._begin_tree(effect, [(spout.inbox, begun) for spout in self.spouts])

    def _begin_tree(self, effect: EmitOnStream, posts: Sequence[tuple[deque[Any], Callable[[Any], Any]]]) -> None:
        self._roots[self.router.begin_tree(self.id, posts)] = effect.stream, effect.attempt

    def _hand_out(self, attempt: TransactionAttempt) -> None:
        """Write the rows of a committed batch to its sinks, and the tuples of a skipped one to those of the dead letters."""
        result, dead = self.router.trident, self.router.held(attempt).dead
        result.batches += 1
        if dead:
            self.report(
                "topology %r: batch %d is skipped, its %d tuples are dead letters: %s",
                self.context.component,
                attempt.txid,
                sum(len(each.rows) for each in dead),
                printable(dead[0].cause, 500),
            )
        rows = self.router.release(attempt)
        for name, kept in result.sinks.items():
            kept += rows.get(name, [])
        for name, write in self.writers.items():
            where = f"on the rows of batch {attempt.txid}, which is committed and is not tried again"
            try:
                write(attempt.txid, rows.get(name, []))
            except FailedException as problem:
                raise user_code_error(f"sink {name!r}", problem, where, file_of(write)) from problem
            except BaseException as problem:
                problem.add_note(f"In sink {name!r} of {self.context.component!r}, {where}.")
                raise

    def _succeed(self, attempt: TransactionAttempt) -> None:
        for inbox, group in self.readers:
            inbox.append(SuccessMessage(BatchId(group, attempt)))
        stamps = self.router.stamps
        self.router.stamps = {txid: stamp for txid, stamp in stamps.items() if txid >= attempt.txid}
        if self._windowed:
            self._stamps.cleanup_before(attempt.txid)

    # -- time, and the end of the input --------------------------------------------------------------------------------

    def _stamp(self, txid: int) -> tuple[int, bool]:
        """Return the time of a batch and whether it drains; the same for every attempt."""
        if not self._windowed:
            return self.router.now_ms, False
        if txid not in self._stamps:
            self._stamps.put(txid, [self.router.now_ms, False])
        now_ms, drains = self._stamps.get(txid)
        return now_ms, drains

    def _answers(self, txid: int) -> list[Readiness]:
        """Return the readiness of each spout; after the last batch one more batch drains the windows."""
        answers = [spout.is_ready(txid, self.until_end) for spout in self.spouts]
        if not self._windowed:
            return answers
        ended = all(answer is Readiness.ENDED for answer in answers)
        drained = self._drained()
        if drained is not None and drained < txid:
            if Readiness.READY in answers:
                raise DrainedCheckpointError(
                    f"the windows of topology {self.context.component!r} were drained by batch {drained} at the end of the input, "
                    "and a spout has more; begin with new records and new states, or run(drain=False) where more may come"
                )
            return [Readiness.ENDED]
        if ended and (self.drains or drained is not None):
            self._stamps.put(txid, [self.router.now_ms, True])
            return [Readiness.READY]
        if drained is not None and Readiness.READY in answers:  # planned as draining, but never sent
            self._stamps.put(txid, [self.router.now_ms, False])
        return answers

    def _drained(self) -> int | None:
        """Return the txid of the draining batch, None if there is none yet."""
        last = self._stamps.last()
        return max(self._stamps.txids()) if last is not None and last[1] else None


# -- TridentTasks -----------------------------------------------------------------------------------------------------------------


MASTER: TaskId = ("$master", 0)
ACKER: TaskId = ("$acker", 0)


class TridentTasks:
    """The tasks of a plan by TaskId: MASTER, a coordinator for each stream, the tasks of the groups, ACKER.

    tasks: all of them, in the order of a round. states: all state partitions by id. given: inputs in place of spouts, by stream. A
    single task can be made again (`make`, `attach`): it gets the inbox of its predecessor and the partitions that `states` has
    then, and otherwise only durable data.
    """

    def __init__(
        self,
        plan: TridentPlan,
        router: TridentRouter,
        config: CoordinatorConfig,
        store: RecordStore,
        states: Mapping[str, list[Any]],
        given: Mapping[str, Given],
    ) -> None:
        self._plan, self._router, self._config, self._store, self._states = plan, router, config, store, states
        self._streams: dict[TaskId, StreamSpout] = {}
        self.requests: dict[str, RequestTask] = {}
        self._committers: list[tuple[deque[Any], str]] = []
        self._readers: list[tuple[deque[Any], str]] = []
        for group in plan.stages.values():
            ids = [(group.id, task) for task in range(group.parallelism)]
            if group.is_spout:
                self._add_stream(group, given)
            for name, spec in coord_specs(plan, group).items():
                if name not in plan.requests:
                    self._readers += [(router.inbox(id), name) for id in ids]
                    self._committers += [(router.inbox(id), name) for id in ids if spec.commits]
        self._spouts: list[CoordinatorTask] = []
        groups = [(group.id, task) for group in plan.stages.values() for task in range(group.parallelism)]
        self._numbers = {id: number for number, id in enumerate([MASTER, *self._streams, *groups, ACKER], 1)}
        made = {id: self.make(id) for id in self._numbers}
        for id, task in made.items():
            self.attach(id, task)
        self.tasks = list(made.values())
        self.master: MasterTask = made[MASTER]

    @property
    def ids(self) -> list[TaskId]:
        return list(self._numbers)

    def make(self, id: TaskId) -> Any:
        """Return a new task with this id; it is not open yet."""
        plan, router, number = self._plan, self._router, self._numbers[id]
        if id == MASTER:
            master = MasterTask(router, number, plan, self._config, coordinator_state(plan, self._store))
            master.spouts, master.readers, master.committers = self._spouts, self._readers, self._committers
            return master
        if id == ACKER:
            owners = [MASTER, *((plan.stage_of(found.spout).id, 0) for found in plan.drpc.values())]
            inboxes = {self._numbers[owner]: router.inbox(owner) for owner in owners}
            return AckerTask(router, number, 0, plan.config, inboxes)
        if id in self._streams:
            return CoordinatorTask(router, number, router.inbox(id), self._streams[id])
        group, task = plan.stages[id[0]], id[1]
        if not group.is_spout:
            return GroupTask(
                router,
                number,
                plan,
                group,
                task,
                states={name: partitions[task] for name, partitions in self._states.items() if task < len(partitions)},
                windows=root_of(plan, self._store).at(f"windows/{part_of(group.id)}/{task}"),
                # A task may hold a batch while earlier batches are retried, so only the trees have a timeout.
                timeout_ms=2 * tree_timeout_ms(plan.config) * (self._config.max_pending + 1),
            )
        stream = self._streams.get((f"${group.id}", 0))
        if stream is not None:
            return EmitterTask(router, number, stream, task)
        node = plan.graph.nodes[group.operators[0]]
        assert isinstance(node, SpoutNode)
        return RequestTask(router, number, plan, node)

    def attach(self, id: TaskId, task: Any) -> None:
        """Connect a new task to the tasks that call it or share objects with it."""
        if id in self._streams:
            position = list(self._streams).index(id)
            self._spouts[position : position + 1] = [task]
        elif isinstance(task, RequestTask):
            self.requests[str(task.node.source.name)] = task

    def _add_stream(self, group: Stage, given: Mapping[str, Given]) -> None:
        plan, node = self._plan, self._plan.graph.nodes[group.operators[0]]
        assert isinstance(node, SpoutNode)
        if node.kind is None:
            return
        emitters = [self._router.inbox((group.id, task)) for task in range(group.parallelism)]
        name, group_of_batches = str(node.source.name), plan.batch_groups[node.number]
        state = root_of(plan, self._store).at(f"spouts/{part_of(name)}")
        id = f"${group.id}", 0
        stream = self._streams[id] = StreamSpout(plan, node, state, given.get(name), emitters)
        self._readers += [(inbox, group_of_batches) for inbox in (self._router.inbox(id), *emitters)]
        if isinstance(stream.spouts[0][0], ICommitterTridentSpout):
            self._committers += [(inbox, group_of_batches) for inbox in emitters]


# -- TridentCluster --------------------------------------------------------------------------------------------------------------


class TridentCluster(LoopedCluster):
    """Runs a Trident topology in one process. A context manager: leaving it closes spouts, operations and states.

    Any thread may call its methods. Those that run the loop (`run`, `run_for`, `step`) take turns; `ask`, `values`, `activate`,
    `deactivate` and `close` are done between two rounds by the thread that runs it.

    batches: rows for streams, in place of their spouts, a list for each batch, from the first batch of the first run on: with
    records, a later run reads only the lists behind those of the committed batches. sources: PartitionedSpouts for streams
    (queues), in place of their spouts; each batch is acked when it is committed. clock: default is the system's clock. seed: None
    keeps the fixed order of steps; a number shuffles them, always in the same way for the same number. coordination: the number of
    batches under way, the number of attempts, and whether a batch is skipped after the last; default is
    `topology.max.spout.pending` (1), `windowing.max.attempts` and the delays of the settings. records: the store in which
    coordinator, spouts and windows keep what outlives the process; state_path: store it in this SQLite file; default is memory.
    sinks: functions of (txid, rows) that get the rows of committed batches instead of the result, once per txid; after a crash the
    last txids may be delivered again. "stream.dead_letters" gets the tuples of skipped batches, which the result has too.

    `states[id]` are the partitions of a state. Raises ConfigError for a stream whose spout emits nothing.

    >>> from windowing.local import VirtualClock
    >>> from windowing.trident import Count, FixedBatchSpout
    >>> topology = TridentTopology("words")
    >>> spout = FixedBatchSpout("word string", 2, [("to",), ("be",), ("to",)])
    >>> _ = topology.new_stream("words", spout).group_by("word").aggregate(None, Count(), "n long").sink("counts")
    >>> with TridentCluster(topology, clock=VirtualClock()) as cluster:
    ...     result = cluster.run()
    >>> result.batches, sorted(result["counts"])
    (2, [('be', 1), ('to', 1), ('to', 1)])
    """

    _router: TridentRouter
    _elsewhere: ClassVar[Mapping[str, str]] = {**LoopedCluster._elsewhere, "execute": 'ask("count_of", "to be")'}

    @spelled
    def __init__(
        self,
        topology: TridentTopology | TridentPlan | None = None,
        batches: Batches | None = None,
        *,
        sources: Mapping[str, Any] | None = None,
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
                f"topology {self.plan.name!r} was given both records= and state_path={quote(str(state_path))}; leave one out"
            )
        log, coordinated = logging.getLogger("windowing").warning, coordination is not None
        config, windows = self.plan.config, self.plan.windowed
        announce(Runtime.TRIDENT, log, self.plan.name, config, windows=windows, coordinated=coordinated)
        self._router = TridentRouter(checked_seed(seed) or 0)
        self._router.unread_late = frozenset(self.plan.unread_late)
        super().__init__(self.plan.name, clock, self._router, seed)
        given: dict[str, Any] = {**checked_batches(self.plan, batches)}
        if sources is not None:
            from windowing.local.sources import sources_of  # needs Arrow

            given |= sources_of(self.plan, sources, given)
        writers = _checked_sinks(self.plan, sinks)
        self._router.trident.sinks = {name: [] for name in self.plan.sinks if name not in writers}
        self._sources = dict(sources or {})
        self._closes += [source.close for source in self._sources.values()]
        self.states: dict[str, list[Any]] = {}
        try:
            store = checked_records(records) or MemoryRecordStore()
            if state_path is not None:
                _refuse_states_in_memory(self.plan, state_path)
                own = store = SqliteRecordStore(state_path)
                self._closes.append(own.close)
            self._coordinator = coordinator_state(self.plan, store)
            self._make_states()
            chosen = _coordination_of(self.plan.config) if coordination is None else coordination
            if not isinstance(chosen, CoordinatorConfig):
                raise ConfigError(
                    f"coordination= is a CoordinatorConfig, got {quote(chosen)}; write CoordinatorConfig(max_pending=2)"
                )
            self.task_set = TridentTasks(self.plan, self._router, chosen, store, self.states, given)
        except BaseException:
            self._end("it could not be made")
            raise
        self.tasks = self.task_set.tasks
        self.task_set.master.writers, self.task_set.master.report = writers, log
        self._lists = {name: len(each) for name, each in given.items() if isinstance(each, list)}

    def _make_states(self) -> None:
        """Make all partitions of the states; each is closed at the end, also where a later one cannot be made."""
        for id, state in self.plan.states.items():
            self.states[id] = []
            for part in range(state.partitions):
                made = partition_of(state.factory, id, part, state.partitions)
                self.states[id].append(made)
                self._closes.append(partial(call_hook, made, "close"))

    @property
    def result(self) -> TridentResult:
        """The results of the run so far."""
        return self._router.trident

    def explain(self) -> str:
        """Return groups, exchanges and operations as text."""
        return self.plan.explain()

    # -- running -------------------------------------------------------------------------------------------------------

    @runs_loop
    def run(self, drain: bool = True) -> TridentResult:
        """Run until every spout has ended and every batch is committed; then one more batch drains the windows.

        With `drain=False` windows stay open for a later run, or a later cluster with the same records; once they are drained, a
        further run asks no spout of single tuples again. Such a spout counts as ended when it emits nothing; for one that waits use
        `run_for`. Raises FailedException for a batch whose last attempt failed, BoltError for other errors of user code.
        """
        self._begin()
        master = self.task_set.master
        self._guarded(master.resume, True, drain)
        self._busy()
        while not master.machine.over and self._pass_time():
            self._busy()
        windows: dict[int, list[WindowTask]] = {}
        for group in self.task_set.tasks:
            for node, window in group.subtopology.windows().items() if isinstance(group, GroupTask) else ():
                windows.setdefault(node, []).append(window.task)
        for tasks in windows.values():
            warn_of_no_times(tasks)
        return self.result

    @runs_loop
    def run_for(self, span: Duration | timedelta) -> TridentResult:
        """Run for `span` of the clock's time, then stop. With a VirtualClock each round in which a batch begins takes one
        millisecond."""
        self._begin()
        self._guarded(self.task_set.master.resume, False, False)
        self._run_for(span)
        return self.result

    def ask(self, function: str, args: str) -> list[Row]:
        """Return the answer of a DRPC function, from states that hold whole batches only.

        Any thread may ask, many at a time; while another one runs the cluster, that one answers between two rounds. First the
        batches under way end; no batch begins meanwhile. An exception of the functions and queries that the request reaches is
        raised here, and the cluster goes on. Raises FailedException if the request fails, or if it is not answered within
        `topology.message.timeout.secs`, ConfigError in user code within a round, WindowingError if the cluster is over.
        """
        task = self.task_set.requests[self.plan.function(function).function]
        if not isinstance(args, str):
            raise ConfigError(
                f"ask({function!r}, ...) is given {quote(args)}; give one text, which the function splits"
            )
        if self.turns.owner == get_ident() and self._within:
            self.refuse_within("ask")
        config = self.plan.config
        patience_s = config.message_timeout_ms / 1000 if config.enable_message_timeouts else None
        try:
            return self.turns.done(partial(self._answer, task, args), patience_s)
        except TimeoutError:
            raise FailedException(
                f"request {args!r} of {function}: no answer within topology.message.timeout.secs ({patience_s:g} s), because the "
                "thread that runs the cluster has been within one round, or with other requests"
            ) from None

    def _answer(self, task: RequestTask, args: str) -> list[Row]:
        self._begin()
        machine = self.task_set.master.machine
        machine.held = True
        try:
            while self._guarded(self._round, self.tasks):
                pass
            self._router.as_of = machine.half_committed()
            number = task.ask(args)
            while (answer := task.answer(number)) is None:
                if not self._guarded(self._round, self.tasks):
                    self._wait(self.tasks)
        finally:
            machine.held = False
        return answer

    def values(self, state: str) -> Any:
        """Return the contents of a state: the items of all partitions of a map as a dict, or the value. A list in a key is a tuple
        there. Cost: O(its size).
        """
        if state not in self.states:
            raise ConfigError(f"there is no state {quote(state)}; {did_you_mean(state, self.states)}")
        return self.turns.done(partial(self._values, state), None)

    def _values(self, state: str) -> Any:
        partitions = self.states[state]
        if not shows_contents(partitions):
            raise ConfigError(
                f"the state {state} is a {type(partitions[0]).__name__}, which has neither items() nor get() to show its contents; "
                "look where it writes them"
            )
        return contents_of(partitions)

    def _switch(self, active: bool) -> None:
        self._begin()
        self._guarded(self.task_set.master.switch, active)

    # -- the loop ------------------------------------------------------------------------------------------------------

    def _take_hold(self) -> None:
        """Take ownership of the states. States and records were opened, for reading only, when the cluster was made."""
        owners = owners_of(self.plan, self._coordinator)
        refuse_lost_record(self.plan, self._coordinator)
        compare_streams(self.plan, self._coordinator, self._sources)
        self._report_unread()
        for id, owner in owners.items():
            for state in self.states[id]:
                take = getattr(state, "own", None)
                if take is not None:
                    take(owner)

    def _report_unread(self) -> None:
        """Log that lists of batches= are not read, because the n-th list is batch n and these batches are committed."""
        committed = StoredRecord(self._coordinator).load().current - 1
        if committed and any(self._lists.values()):
            logging.getLogger("windowing").warning(
                "topology %r: the first %d lists of a stream are not read (%s): the n-th list is batch n, and these are committed. "
                "New rows go behind the lists of all earlier runs, or into a queue (sources=), which continues by itself",
                self.plan.name,
                committed,
                ", ".join(f"{name!r} has {count}" for name, count in self._lists.items()),
            )

    def _emissions(self) -> int:
        return self.task_set.master.begun


def _refuse_states_in_memory(plan: TridentPlan, state_path: str | Path) -> None:
    """Raise ConfigError for a state that is written and lost with this process, beside records that outlive it."""
    for state in plan.written:
        store = getattr(state.factory, "store", None)
        if getattr(store, "in_this_process", False):
            raise ConfigError(
                f"{state.id} of topology {plan.name!r} lies in a {type(store).__name__}, which is lost with this process, and no "
                f"later run could continue with the records in state_path={quote(str(state_path))}; give SqliteStore(path), "
                "PostgresStore(url) or RedisStore(url), or leave state_path= out"
            )


@spelled
def run_trident(
    topology: TridentTopology | TridentPlan,
    batches: Batches | None = None,
    *,
    sources: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
    seed: int | None = None,
    coordination: CoordinatorConfig | None = None,
    records: RecordStore | None = None,
    state_path: str | Path | None = None,
    sinks: Mapping[str, SinkWriter] | None = None,
    drain: bool = True,
) -> TridentResult:
    """Run a topology until its spouts have ended; the arguments are those of TridentCluster.

    `states` of the result is a copy of the states' contents at the end, by id, of maps and values; meant for tests and examples.

    >>> from windowing.local import VirtualClock
    >>> from windowing.stores import MemoryStore, map_state
    >>> from windowing.trident import Count, FixedBatchSpout
    >>> topology = TridentTopology("words")
    >>> words = topology.new_stream("words", FixedBatchSpout("word string", 2, [("to",), ("be",), ("to",)]))
    >>> _ = words.group_by("word").persistent_aggregate(map_state(MemoryStore(), "counts"), None, Count(), "n long")
    >>> run_trident(topology, clock=VirtualClock()).states
    {'state1': {('be',): 1, ('to',): 2}}
    """
    cluster = TridentCluster(
        topology,
        batches=batches,
        sources=sources,
        clock=clock,
        seed=seed,
        coordination=coordination,
        records=records,
        state_path=state_path,
        sinks=sinks,
    )
    with cluster:
        result = cluster.run(drain)
        result.states.update((id, cluster.values(id)) for id, state in cluster.states.items() if shows_contents(state))
    return result


def _coordination_of(config: TopologyConfig) -> CoordinatorConfig:
    """Return the coordination that the settings of a topology ask for."""
    return CoordinatorConfig(config.max_spout_pending or 1, config.batch_emit_interval_ms, retry=RetryPolicy.of(config))


def _hashable(key: Any) -> Any:
    """Return the key of a state as the key of a dict: fields of the type array are lists in it."""
    try:
        hash(key)
    except TypeError:
        return tuple(map(_hashable, key))
    return key


def shows_contents(partitions: Sequence[Any]) -> bool:
    """Return whether a state is a map or a value; one of a user's own may have `begin_commit` and `commit` only."""
    return hasattr(partitions[0], "items") or hasattr(partitions[0], "get")


def contents_of(partitions: Sequence[Any]) -> Any:
    """Return the items of all partitions of a map as a dict, or the value of a state that shows its contents."""
    if hasattr(partitions[0], "items"):
        return {_hashable(key): value for partition in partitions for key, value in partition.items()}
    return partitions[0].get()


def checked_batches(plan: TridentPlan, batches: Batches | None) -> dict[str, list[list[Any]]]:
    """Return the rows of each stream, batch by batch. Raises ConfigError for an unknown stream, and for what is no rows."""
    given = batches_by_name(batches, "stream", plan.source_of)
    schemas = {name: plan.source_of(name).schema for name in given}
    return {
        name: [rows_in(list(rows), schemas[name], f"stream {name!r}, batch {n}") for n, rows in enumerate(some)]
        for name, some in given.items()
    }


def _checked_sinks(plan: TridentPlan, sinks: Mapping[str, SinkWriter] | None) -> dict[str, SinkWriter]:
    if sinks is not None and not isinstance(sinks, Mapping):
        raise ConfigError(
            f"sinks= is a mapping of sinks to functions of (txid, rows), got {quote(sinks)}; write sinks={{'out': write}}"
        )
    known = [*plan.sinks, *(f"{stream}.{DEAD_LETTERS}" for stream in plan.streams)]
    for name, write in (sinks or {}).items():
        if name not in known:
            raise ConfigError(f"there is no sink {quote(name)}; {did_you_mean(str(name), known)}")
        if not callable(write):
            raise ConfigError(f"the sink {name} is given {quote(write)}; give a function of (txid, rows)")
        problem = uncallable(write, ("txid", "rows"))
        if problem is not None:
            raise ConfigError(f"the sink {name} is given {quote(write)}, which {problem}")
    return dict(sinks or {})
