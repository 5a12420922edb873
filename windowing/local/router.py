"""The router of LocalCluster: the state that all tasks share, and the delivery of emitted tuples to the tasks that read them.

    task --send(values)--> Outbox --by grouping--> inbox of each task that reads the stream     one Delivery each, with edges
                              |------------------> outputs, if the stream is an output of the run
    task --ack, fail--> router ----by root-------> inbox of an acker

Law: a Delivery goes to one task and has its own anchors. All messages travel through inboxes, which are first in, first out.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, NoReturn

from windowing.acking.acker import Anchors, Reason, acks_of, anchored, edge_in
from windowing.errors import GroupingError, describe_error
from windowing.execution.metrics import LateLog
from windowing.local.clock import Clock, VirtualClock
from windowing.schema.checks import StormNames
from windowing.schema.tuples import Fields, Origin, Tuple, tuple_type
from windowing.topology.dead_letters import DeadLetter
from windowing.topology.groupings import Chooser, CustomGrouping, DirectGrouping, direct_targets, unrouted
from windowing.topology.pictures import brief_repr, html_table
from windowing.topology.plan import Topology, output_name

_log = logging.getLogger("windowing")
_LOGGED, _EVERY_MS = 5, 10_000
"""At most 5 reported errors of a component are logged in 10 seconds, as in Storm."""
_NO_IDS: Mapping[int, int] = {}

INITS, ACKS, FAIL, RESET = range(4)
"""The kinds of messages to an acker: (INITS, pairs, spout task) and (ACKS, pairs, component), with a pair (root, xor) per tuple;
(FAIL, root, component, reason), (RESET, root)."""


class Delivery(Tuple):
    """A tuple on its way to one task. `_anchors` are its edges, None for an untracked tuple."""

    __slots__ = ("_anchors",)

    def __init__(self, values: tuple[Any, ...], origin: Origin, anchors: Anchors | None) -> None:
        self._values = values
        self._origin = origin
        self._anchors = anchors

    def get_message_id(self) -> Mapping[int, int]:
        return _NO_IDS if self._anchors is None else self._anchors.edges


class ReportedError(NamedTuple):
    """An error that a component reported without stopping."""

    component: str
    task: int
    error: BaseException


class _Counts(dict[str, dict[str, int]]):
    """The counts of windowed bolts. A name without counts raises a KeyError that says which names have some."""

    def __missing__(self, component: str) -> NoReturn:
        known = f"those are {', '.join(self)}" if self else "there are none"
        raise KeyError(
            f"{component!r} is no windowed bolt of this run with counts, {known}; `acked` and `failures` count messages"
        )


@dataclass(slots=True, repr=False)
class ClusterResult(StormNames):
    """The results of a run so far.

    outputs: the rows of the output streams, by "component" or "component.stream", in order of emission. acked: messages whose
    whole tree was acked. failures: failed attempts. checkpoints: committed checkpoints of states. dead_letters: messages that
    were given up, and failed windows. errors: reported errors. late: late tuples by (component, reason), whether or not a bolt
    reads the late stream. counts: for each windowed bolt the counts of its executors (in, shown, skipped, pending, expired, late,
    fired). duplicates: by windowed bolt, the repeated tuples that `message_id=` kept out of the windows. Stored windows count
    those of earlier runs too, in both.
    """

    _elsewhere: ClassVar[Mapping[str, str]] = {"sinks rows": 'outputs, or result["count"] for one stream'}

    outputs: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    acked: int = 0
    failures: int = 0
    checkpoints: int = 0
    dead_letters: list[DeadLetter] = field(default_factory=list)
    errors: list[ReportedError] = field(default_factory=list)
    late: dict[tuple[str, str], int] = field(default_factory=dict)
    counts: dict[str, dict[str, int]] = field(default_factory=_Counts)
    duplicates: dict[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return brief_repr(self)

    def _repr_html_(self) -> str:
        rows: list[list[object]] = [["acked", self.acked], ["failures", self.failures]]
        rows += [[f"output {name}", len(found)] for name, found in self.outputs.items()]
        rows += [[f"late of {component}: {reason}", count] for (component, reason), count in self.late.items()]
        rows += [[f"duplicates of {component}", count] for component, count in self.duplicates.items()]
        rows += [["dead letters", len(self.dead_letters)], ["errors", len(self.errors)]]
        return html_table("run", ("what", "how many"), rows)

    def __getitem__(self, output: str) -> list[tuple[Any, ...]]:
        """Return the rows of one output, "count" or "count.late"."""
        if output not in self.outputs:
            raise KeyError(
                f"{output!r} is no output of this run, there are {', '.join(self.outputs)}; name it in outputs=, "
                "if a bolt reads it too"
            )
        return self.outputs[output]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the outputs."""
        return iter(self.outputs)


class Router:
    """The clock, the time of this round, the generator of ids, the inboxes of the ackers, the numbers of begun and of finished
    rollbacks of checkpoints, and the result.

    `in_batches`: the rows of InputSpouts come in batches, and windows on event time make their turns at the ends of batches only.
    `dead_letters`: for each component whose dead letters are read by a bolt, the routes of these. `late_log`: for late tuples that
    go nowhere.
    """

    __slots__ = (
        "_bits",
        "_logged",
        "ackers",
        "clock",
        "dead_letters",
        "errors",
        "in_batches",
        "late_log",
        "now_ms",
        "random",
        "restarts",
        "result",
        "rollbacks",
    )

    def __init__(self, seed: int, ackers: int) -> None:
        self.random = random.Random(seed)
        self._bits = self.random.getrandbits
        self.ackers: list[deque[Any]] = [deque() for _ in range(ackers)]
        self.in_batches = False
        self.dead_letters: dict[str, StreamRoutes] = {}
        self.clock: Clock = VirtualClock()
        self.now_ms = 0
        self.restarts = self.rollbacks = 0
        self.result = ClusterResult()
        self.errors = self.result.errors
        """The errors that components have reported."""
        self.late_log: LateLog
        self._logged: dict[str, tuple[int, int]] = {}

    def report(self, component: str, task: int, error: BaseException) -> None:
        """Add an error to the result, and log it unless the component has reached its limit."""
        self.errors.append(ReportedError(component, task, error))
        since_ms, count = self._logged.get(component, (self.now_ms, 0))
        if self.now_ms >= since_ms + _EVERY_MS:
            since_ms, count = self.now_ms, 0
        self._logged[component] = (since_ms, count + 1)
        if count < _LOGGED:
            rest = "; more of it are in the result alone for a while" if count + 1 == _LOGGED else ""
            _log.warning("component %r, task %d, reports %s%s", component, task, describe_error(error), rest)

    def edge(self) -> int:
        """Return a new id for a root or an edge; never 0."""
        return self._bits(64) or 1

    def tell(self, root: int, message: tuple[Any, ...]) -> None:
        self.ackers[root % len(self.ackers)].append(message)

    def ack(self, anchors: Anchors | None, component: str) -> None:
        if anchors is not None:
            self.tell_all(ACKS, acks_of((anchors,)), component)

    def ack_all(self, tuples: Iterable[Anchors], component: str | None) -> None:
        """Ack tuples of one component. With None the trees keep the component that was seen last."""
        self.tell_all(ACKS, acks_of(tuples), component)

    def tell_all(self, kind: int, pairs: list[tuple[int, int]], sender: int | str | None) -> None:
        """Send INITS or ACKS to the ackers: one message per acker, with the pairs (root, XOR) of its roots, in order."""
        ackers = self.ackers
        shares: dict[int, list[tuple[int, int]]] = {}
        if len(ackers) == 1 and pairs:
            shares[0] = pairs
        else:
            for pair in pairs:
                shares.setdefault(pair[0] % len(ackers), []).append(pair)
        for acker, share in shares.items():
            ackers[acker].append((kind, share, sender))

    def fail(self, anchors: Anchors | None, component: str, reason: str = Reason.FAILED) -> None:
        """Fail a tuple in each of its trees. reason: the text of the exception, if there is one."""
        if anchors is not None:
            for root in anchors.fail():
                self.tell(root, (FAIL, root, component, reason))

    def reset_timeout(self, anchors: Anchors | None) -> None:
        for root in () if anchors is None else anchors.edges:
            self.tell(root, (RESET, root))


class _Route(NamedTuple):
    """One reader of a stream, for one emitting task. fixed: the tasks that get every tuple; None if the chooser picks them."""

    reader: str
    chooser: Chooser
    state: list[int]
    fixed: Sequence[int] | None
    inboxes: list[deque[Any]]
    first_id: int


class StreamRoutes:
    """One stream of one emitting task: its outputs and the inboxes of its readers, resolved before the run begins. Cost of an emit:
    O(receiving tasks * anchors).

    send(values, anchors=(), task=None, tree=None): deliver a row to every task that the readers' groupings choose; return the ids
    of these tasks. tree: [root, 0] for a row that begins a tuple tree; the 0 is replaced by the XOR of the tree's first edges.
    """

    __slots__ = ("_output", "_routes", "has_bolts", "origin", "send")

    def __init__(
        self,
        router: Router,
        topology: Topology,
        component: str,
        task: int,
        stream: str,
        inboxes: Mapping[str, list[deque[Any]]],
    ) -> None:
        declared, task_ids = topology.component(component).outputs[stream], topology.task_ids
        readers = topology.readers(component, stream)
        self.origin = Origin(component, task, Fields(declared.schema.names), stream, task_ids)
        self._output = router.result.outputs.get(output_name(component, stream))
        self._routes = []
        for reader, grouping in readers:
            chooser = grouping.targets(reader.parallelism, declared.schema)
            state = grouping.start(reader.parallelism, task)
            only = reader.parallelism == 1 and not isinstance(grouping, CustomGrouping | DirectGrouping)
            first_id = task_ids[reader.id].start
            self._routes.append(_Route(reader.id, chooser, state, (0,) if only else None, inboxes[reader.id], first_id))
        self.has_bolts = bool(self._routes)
        """Whether a bolt reads the stream; the rows of an output are not tracked."""
        direct = {reader.id: task_ids[reader.id] for reader, _ in readers} if declared.direct else {}
        self.send: Callable[..., list[int]] = self._made_send(router, direct)
        if topology.config_of(component).debug:
            self.send = self._logged(self.send)

    @property
    def waiting(self) -> int:
        """The number of messages in the inboxes of the bolts that read the stream."""
        return sum(len(inbox) for route in self._routes for inbox in route.inboxes)

    @property
    def is_read(self) -> bool:
        """Whether the stream has a reader: a bolt, or an output of the run."""
        return self.has_bolts or self._output is not None

    def _made_send(self, router: Router, direct: Mapping[str, range]) -> Callable[..., list[int]]:
        """Return `send`, with all lookups done in advance. direct: the task ids of the readers of a direct stream.

        Two cases need no loop: a stream that is only an output, and an unanchored stream that a single task reads.
        """
        origin, output, routes, bits = self.origin, self._output, self._routes, router.random.getrandbits
        delivery = tuple_type(Delivery, origin.fields.names)

        def to_task(task: int | None) -> list[_Route]:
            reader, index = direct_targets(task, direct)
            return [route._replace(fixed=(index,)) for route in routes if route.reader == reader]

        def send(
            values: tuple[Any, ...],
            anchors: Sequence[Anchors] = (),
            task: int | None = None,
            tree: list[int] | None = None,
        ) -> list[int]:
            if output is not None:
                output.append(values)
            ids = []
            try:
                for _, chooser, state, fixed, inboxes, first_id in to_task(task) if direct else routes:
                    for index in fixed or chooser(values, state):
                        edges = None
                        if tree is not None:
                            root_edge = bits(64) or 1
                            tree[1] ^= root_edge
                            edges = edge_in((tree[0],), root_edge)
                        elif anchors:
                            edges = (
                                anchors[0].child(bits(64) or 1) if len(anchors) == 1 else anchored(anchors, router.edge)
                            )
                        inboxes[index].append(delivery(values, origin, edges))
                        ids.append(first_id + index)
            except GroupingError as problem:
                raise unrouted(problem, origin.component, origin.stream) from problem.__cause__
            return ids

        def send_out(
            values: tuple[Any, ...], anchors: object = (), task: object = None, tree: object = None
        ) -> list[int]:
            to_output(values)
            return []

        def send_to_one(
            values: tuple[Any, ...], anchors: object = (), task: object = None, tree: object = None
        ) -> list[int]:
            to_one(delivery(values, origin, None))
            return [id]

        if output is not None and not routes:
            to_output = output.append
            return send_out
        if output is None and not router.ackers and len(routes) == 1 and (fixed := routes[0].fixed) is not None:
            to_one, id = routes[0].inboxes[fixed[0]].append, routes[0].first_id + fixed[0]
            return send_to_one
        return send

    def _logged(self, send: Callable[..., list[int]]) -> Callable[..., list[int]]:
        """Return `send` for a component with `topology.debug`: it logs each row."""

        def logged(
            values: tuple[Any, ...], anchors: Sequence[Anchors] = (), task: int | None = None, tree: Any = None
        ) -> list[int]:
            _log.info("%r emits %r%s", self.origin, values, "" if task is None else f" to task {task}")
            return send(values, anchors, task, tree)

        return logged


Outbox = Mapping[str, StreamRoutes]
"""The outgoing side of one task: the routes of each of its streams."""
