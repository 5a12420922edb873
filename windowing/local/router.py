"""The router of LocalCluster: what all tasks share, and how what a task emits reaches the tasks that read it.

    task --send(values)--> Outbox --by grouping--> inbox of each task that reads the stream     a Delivery each, with edges
                              |------------------> outputs, where the stream is one of them
    task --ack, fail--> router ----by root-------> inbox of an acker

Law: a Delivery goes to one task and has anchors of its own; everything travels through inboxes, which are first in, first out.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from windowing.acking.acker import Anchors, anchored
from windowing.errors import describe_error
from windowing.schema.tuples import Fields, Origin, Tuple
from windowing.topology.dead_letters import DeadLetter
from windowing.topology.groupings import Chooser, direct_targets
from windowing.topology.plan import Topology

__all__ = [
    "ACK",
    "FAIL",
    "INIT",
    "RESET",
    "ClusterResult",
    "Delivery",
    "Outbox",
    "ReportedError",
    "Router",
    "output_name",
]


_LOG = logging.getLogger("windowing")
_LOGGED, _EVERY_MS = 5, 10_000
"""So many reported errors of a component are logged in so much time, as in Storm."""
_NO_IDS: Mapping[int, int] = {}

INIT, ACK, FAIL, RESET = range(4)
"""What a message to an acker says: (INIT, root, xor, spout task), (ACK, root, xor, component), (FAIL, ...), (RESET, ...)."""


class Delivery(Tuple):
    """A tuple on its way to one task; `_anchors` are its edges, None where nobody waits for its ack."""

    __slots__ = ("_anchors",)

    def __init__(self, values: tuple[Any, ...], origin: Origin, anchors: Anchors | None) -> None:
        self._values = values
        self._origin = origin
        self._ids = _NO_IDS if anchors is None else anchors.edges
        self._anchors = anchors


class ReportedError(NamedTuple):
    """An error that a component reported without stopping."""

    component: str
    task: int
    error: BaseException


@dataclass(slots=True)
class ClusterResult:
    """What came of a run so far.

    outputs: the rows of the streams that are outputs, by "component" or "component.stream", in order of emission. acked:
    messages whose whole tree was acked. failures: failed attempts. checkpoints: commits of states. dead_letters: the messages
    that were given up, and the windows that failed. errors: see there. late: tuples on side streams by (component, reason), read
    or not. counts: for each windowed bolt what its executors count (in, shown, skipped, pending, expired, late, fired).
    """

    outputs: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    acked: int = 0
    failures: int = 0
    checkpoints: int = 0
    dead_letters: list[DeadLetter] = field(default_factory=list)
    errors: list[ReportedError] = field(default_factory=list)
    late: dict[tuple[str, str], int] = field(default_factory=dict)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)

    def __getitem__(self, output: str) -> list[tuple[Any, ...]]:
        """Return the rows of one output, "count" or "count.late"."""
        if output not in self.outputs:
            raise KeyError(
                f"{output!r} is no output of this run, there are {', '.join(self.outputs)}; name it in outputs=, "
                "if a bolt reads it too"
            )
        return self.outputs[output]


def output_name(component: str, stream: str) -> str:
    """Return what an output is called: the component alone for its default stream.

    >>> output_name("count", "default"), output_name("count", "late")
    ('count', 'count.late')
    """
    return component if stream == "default" else f"{component}.{stream}"


class Router:
    """The time as of this round, the ids, the inboxes of the ackers, the windowed tasks by component, and the result.

    `dead_letter_outboxes`: for each component whose dead letters somebody reads, where messages go that were last seen there.
    """

    __slots__ = ("_bits", "_logged", "ackers", "dead_letter_outboxes", "now_ms", "random", "result", "windowed")

    def __init__(self, seed: int, ackers: int) -> None:
        self.random = random.Random(seed)
        self._bits = self.random.getrandbits
        self.ackers: list[deque[Any]] = [deque() for _ in range(ackers)]
        self.windowed: dict[str, list[Any]] = {}
        self.dead_letter_outboxes: dict[str, Outbox] = {}
        self.now_ms = 0
        self.result = ClusterResult()
        self._logged: dict[str, tuple[int, int]] = {}

    @property
    def errors(self) -> list[ReportedError]:
        """Where the errors are that components have reported."""
        return self.result.errors

    def report(self, component: str, task: int, error: BaseException) -> None:
        """Keep an error for whoever looks at the result, and log it, if not too many of the component were."""
        self.errors.append(ReportedError(component, task, error))
        since_ms, count = self._logged.get(component, (self.now_ms, 0))
        if self.now_ms >= since_ms + _EVERY_MS:
            since_ms, count = self.now_ms, 0
        self._logged[component] = (since_ms, count + 1)
        if count < _LOGGED:
            rest = "; more of it are in the result alone for a while" if count + 1 == _LOGGED else ""
            _LOG.warning("component %r, task %d, reports %s%s", component, task, describe_error(error), rest)

    def edge(self) -> int:
        """Return a new id for a root or an edge; never 0."""
        return self._bits(64) or 1

    def tell(self, root: int, message: tuple[Any, ...]) -> None:
        """Send a message to the acker of a root."""
        self.ackers[root % len(self.ackers)].append(message)

    def ack(self, anchors: Anchors | None, component: str) -> None:
        """Settle a tuple: its part of each tree is done."""
        if anchors is not None:
            for root, xor in anchors.ack():
                self.ackers[root % len(self.ackers)].append((ACK, root, xor, component))

    def fail(self, anchors: Anchors | None, component: str) -> None:
        """Settle a tuple: each of its trees fails."""
        if anchors is not None:
            for root in anchors.fail():
                self.tell(root, (FAIL, root, component))

    def reset_timeout(self, anchors: Anchors | None) -> None:
        """Give each tree of a tuple a whole timeout from now on."""
        for root in () if anchors is None else anchors.edges:
            self.tell(root, (RESET, root))


class _Route(NamedTuple):
    """One reader of a stream, as one emitting task sees it."""

    reader: str
    chooser: Chooser
    state: list[int]
    inboxes: list[deque[Any]]
    first_id: int


class Outbox:
    """The outgoing side of one task. Cost: O(tasks that a tuple goes to) an emit, times its anchors."""

    __slots__ = ("_debug", "_direct", "_origins", "_outputs", "_router", "_routes")

    def __init__(
        self, router: Router, topology: Topology, component: str, task: int, inboxes: Mapping[str, list[deque[Any]]]
    ) -> None:
        placed = topology.component(component)
        task_ids = topology.task_ids
        self._router = router
        self._debug = topology.setting(component, "debug")
        self._origins: dict[str, Origin] = {}
        self._routes: dict[str, list[_Route]] = {}
        self._direct: dict[str, dict[str, range]] = {}
        self._outputs: dict[str, list[tuple[Any, ...]] | None] = {}
        for stream, declared in placed.outputs.items():
            self._origins[stream] = Origin(component, task, Fields(declared.schema.names), stream, task_ids)
            self._outputs[stream] = router.result.outputs.get(output_name(component, stream))
            self._routes[stream] = []
            readers = topology.readers(component, stream)
            self._direct[stream] = {reader.id: task_ids[reader.id] for reader, _ in readers} if declared.direct else {}
            for reader, grouping in readers:
                chooser = grouping.targets(reader.parallelism, declared.schema, range(reader.parallelism))
                state = [] if declared.direct else chooser.start(task)
                route = _Route(reader.id, chooser, state, inboxes[reader.id], task_ids[reader.id].start)
                self._routes[stream].append(route)

    def send(
        self, stream: str, values: tuple[Any, ...], anchors: Iterable[Anchors] = (), task: int | None = None
    ) -> list[int]:
        """Deliver a row to every task that its readers' groupings choose, and return the ids of those tasks."""
        router, origin, ids = self._router, self._origins[stream], []
        for inbox, id in self._targets(stream, values, task):
            edges = anchored(anchors, router.edge) if anchors else None
            inbox.append(Delivery(values, origin, edges))
            ids.append(id)
        return ids

    def send_root(
        self, stream: str, values: tuple[Any, ...], root: int, task: int | None = None
    ) -> tuple[int, list[int]]:
        """Deliver a spout's row as the beginning of a tree; return the XOR of its edges, and the ids of the tasks."""
        router, origin, ids, xor = self._router, self._origins[stream], [], 0
        for inbox, id in self._targets(stream, values, task):
            edge = router.edge()
            xor ^= edge
            inbox.append(Delivery(values, origin, Anchors({root: edge})))
            ids.append(id)
        return xor, ids

    def is_read(self, stream: str) -> bool:
        """Whether what is sent on a stream reaches anybody: a bolt, or an output."""
        return bool(self._routes[stream]) or self._outputs[stream] is not None

    def _targets(self, stream: str, values: tuple[Any, ...], task: int | None) -> list[tuple[deque[Any], int]]:
        if self._debug:
            _LOG.info("%r emits %r%s", self._origins[stream], values, "" if task is None else f" to task {task}")
        output = self._outputs[stream]
        if output is not None:
            output.append(values)
        direct = self._direct[stream]
        only, at = direct_targets(task, direct, stream) if direct else (None, 0)
        targets = []
        for route in self._routes[stream]:
            if only is not None:
                chosen: Sequence[int] = (at,) if route.reader == only else ()
            else:
                chosen = route.chooser(values, route.state)
            targets += [(route.inboxes[index], route.first_id + index) for index in chosen]
        return targets
