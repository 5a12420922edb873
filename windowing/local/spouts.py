"""Spouts of LocalCluster: the task that asks a source for tuples, keeps track of those in flight and retries those that fail.

    TupleSource           next_tuple                       ack / fail of a message id
      RowsSource          the next row of a function        the task emits a failed row again
      FunctionSource      calls a function of (collector)   the same
      ObjectSource        calls next_tuple of an object     calls its ack and fail, with the values where it takes them
      InputSource         the next row that was fed         the task emits a failed row again
      RootSource        the next row of a PartitionedSpout (roots.py)       the same; the spout hears of whole batches

The rows of an InputSource come in batches: run_local [[row, row], [row]], run_topology {"spout": [[row, row], [row]]}, run_trident
the same by stream. What is no list of rows, or has a row that does not fit, is refused before any of it arrives.

Laws
- A message that failed is emitted again after its back-off, `max_attempts` times in all; then it is a dead letter of the component
  where its tree was last seen.
- A dead letter that a bolt reads is a message too, tried as often. When it is done, so is the message: the source's `give_up` is
  called, or its `ack` if it has no such method. Where no bolt reads it, only `give_up`: what failed and is nowhere is not acked.
- Without ackers a message is acked when it is emitted.

Source: Storm's `SpoutExecutor`; the limit of attempts and what comes after it are ours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from windowing.acking.acker import Acked, AckedRoots, Failed
from windowing.acking.pending import Done, GivenUp, Retry, SpoutPending
from windowing.errors import BoltError, ConfigError, WindowingError, quote
from windowing.local.tasks import ComponentTask, TaskParts
from windowing.schema.checks import DEFAULT_STREAM, StormNames
from windowing.schema.rows import RowError, no_rows, row_of, rows_of
from windowing.schema.tuples import Fields, Origin, Tuple
from windowing.schema.types import Schema
from windowing.topology.bolts import CallStyle
from windowing.topology.dead_letters import DEAD_LETTERS, DeadLetter
from windowing.topology.decorators import ComponentKind, Declaration
from windowing.topology.user_code import OutputStreams, file_of, user_code_error

__all__ = [
    "InputSource",
    "SpoutCollector",
    "SpoutTask",
    "batches_by_name",
    "is_list",
    "listed",
    "rows_in",
]

Batches = Mapping[str, Sequence[Iterable[Any]]]
"""What each spout emits, batch by batch: rows by the spout's name."""


def is_list(rows: Any) -> bool:
    """Whether it is a list of rows: not a row (a text, a mapping, a namedtuple), not what gives no rows (`no_rows`)."""
    several = isinstance(rows, Iterable) and not isinstance(
        rows, str | bytes | bytearray | memoryview | Mapping | Tuple
    )
    return several and not hasattr(rows, "_fields") and no_rows(rows) is None


def listed(rows: Any, wanted: str) -> Iterable[Any]:
    """Return `rows` as it is, or raise ConfigError if it is no list of rows."""
    if not is_list(rows):
        given = no_rows(rows) or f"{quote(rows)}; write [row, row], and [[row, row]] for a list of batches"
        raise ConfigError(f"{wanted}, got {given}")
    found: Iterable[Any] = rows
    return found


def batches_by_name(batches: Any, whose: str) -> dict[str, list[Iterable[Any]]]:
    """Return what a run is given as `batches=`, by the names of those whose batches they are.

    >>> batches_by_name({"sentences": [["the cow"], ("jumped", "over")]}, "InputSpout")
    {'sentences': [['the cow'], ('jumped', 'over')]}
    >>> batches_by_name({"sentences": ["the cow"]}, "InputSpout")
    Traceback (most recent call last):
    windowing.errors.ConfigError: [CONFIG] InputSpout 'sentences' takes a list of batches, each a list of rows, got 'the cow'; \
write [row, row], and [[row, row]] for a list of batches
    """
    if not isinstance(batches, Mapping | None):
        raise ConfigError(
            f"batches= is a mapping by the name of each {whose}, got {quote(batches)}; write {{'name': [[row, row]]}}"
        )
    found = {}
    for name, some in (batches or {}).items():
        wanted = f"{whose} {quote(name)} takes a list of batches, each a list of rows"
        found[name] = [listed(batch, wanted) for batch in listed(some, wanted)]
    return found


def rows_in(batch: Sequence[Any], schema: Schema, where: str) -> list[tuple[Any, ...]]:
    """Return the rows of a batch as tuples of the schema, or raise ConfigError for the first that does not fit.

    >>> rows_in([("a", 1), {"n": 2, "word": "b"}], Schema.parse("word string, n int"), "InputSpout 'words', batch 0")
    [('a', 1), ('b', 2)]
    """
    rows: list[tuple[Any, ...]] = []
    try:
        for row in batch:
            rows.append(row_of(row, schema, DEFAULT_STREAM))
    except RowError as problem:
        flat = "; the batch is such a row itself: write [[row, row]]" if _is_row(batch, schema) else ""
        raise ConfigError(f"{where}, row {len(rows)} (counted from 0): {problem.args[0]}{flat}") from None
    return rows


def _is_row(batch: Sequence[Any], schema: Schema) -> bool:
    try:
        row_of(tuple(batch), schema, DEFAULT_STREAM)
    except RowError:
        return False
    return len(schema) > 1


# -- SpoutTask -------------------------------------------------------------------------------------------------------------------


_BURST = 100
_ASKED, _ACKED = "in next_tuple", "in ack"
_Message = tuple[tuple[Any, ...], str, int | None] | DeadLetter
"""What a spout emits again if it fails: values, stream, task of a direct emit; or a dead letter."""
_DEAD = object()
"""With it a dead letter has another message id than its message: the attempts of the two are counted apart."""


class TupleSource(Protocol):
    """What a spout task asks for tuples."""

    @property
    def over(self) -> bool:
        """Whether nothing will come any more, except what failed."""

    def next_tuple(self) -> None:
        """Emit some tuples to the collector, or none."""

    def ack(self, message_id: Any, values: tuple[Any, ...]) -> None:
        """Hear that a message is done."""

    def fail(self, message_id: Any, values: tuple[Any, ...]) -> bool:
        """Hear that a message failed and may be emitted again; return False to let the driver do it."""

    def give_up(self, letter: DeadLetter, taken: bool) -> bool:
        """Hear that a message failed for the last time and is a dead letter; return False if it does not ask for that. taken: who
        reads the dead letter is done with it."""


class _Silent:
    """A source that has nothing to do with what becomes of its tuples."""

    def ack(self, message_id: Any, values: tuple[Any, ...]) -> None:
        return None

    def fail(self, message_id: Any, values: tuple[Any, ...]) -> bool:
        return False

    def give_up(self, letter: DeadLetter, taken: bool) -> bool:
        return False


class RowsSource(_Silent):
    """The rows that a function returns or yields, one for each `next_tuple`; their numbers are the message ids."""

    def __init__(self, rows: Iterator[tuple[Any, ...]], collector: SpoutCollector) -> None:
        self.over = False
        self._rows = rows
        self._collector = collector
        self._number = 0

    def next_tuple(self) -> None:
        row = next(self._rows, None)
        if row is None:
            self.over = True
            return
        self._collector.emit(row, message_id=self._number)
        self._number += 1


class InputSource(_Silent):
    """Rows that the cluster is handed; over unless there are some."""

    def __init__(self, collector: SpoutCollector) -> None:
        self._rows: deque[tuple[Any, ...]] = deque()
        self._collector = collector
        self._number = 0

    @property
    def over(self) -> bool:
        return not self._rows

    def feed(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Take more rows."""
        self._rows.extend(rows)

    def next_tuple(self) -> None:
        self._collector.emit(self._rows.popleft(), message_id=self._number)
        self._number += 1


class FunctionSource(_Silent):
    """A function of (collector), called for each `next_tuple`."""

    over = False

    def __init__(self, function: Callable[[Any], Any], collector: SpoutCollector) -> None:
        self._function = function
        self._collector = collector

    def next_tuple(self) -> None:
        self._function(self._collector)


class ObjectSource:
    """An instance of a spout class. `values_back` names which of "ack", "fail" and "give_up" take the values too."""

    over = False

    def __init__(self, instance: Any, values_back: frozenset[str]) -> None:
        self.next_tuple = instance.next_tuple
        self._instance = instance
        self._values_back = values_back
        self._ack = getattr(instance, "ack", None)
        self._ack_takes_values = "ack" in values_back

    def ack(self, message_id: Any, values: tuple[Any, ...]) -> None:
        if self._ack is not None:
            self._ack(message_id, values) if self._ack_takes_values else self._ack(message_id)

    def fail(self, message_id: Any, values: tuple[Any, ...]) -> bool:
        return self._call("fail", message_id, values)

    def give_up(self, letter: DeadLetter, taken: bool) -> bool:
        return self._call("give_up", letter.message_id, letter.values)

    def _call(self, method: str, message_id: Any, values: tuple[Any, ...]) -> bool:
        call = getattr(self._instance, method, None)
        if call is None:
            return False
        call(message_id, values) if method in self._values_back else call(message_id)
        return True


class SpoutTask(ComponentTask):
    """One task of a spout. `pending` has its limit and its retries; `acking` is False where there is no acker. read: returns what
    is emitted by an InputSpout that was given a source.
    """

    def __init__(
        self,
        parts: TaskParts,
        pending: SpoutPending,
        read: Callable[[SpoutCollector], TupleSource] | None = None,
    ) -> None:
        super().__init__(parts)
        component = parts.component
        self.pending = pending
        self._read = read
        self.active = True
        self.dry = False
        self.source: TupleSource = _NEVER
        self._acking = bool(self.router.ackers)
        self._streams = OutputStreams(component.outputs)
        self._converters = self._streams.converters()
        self._instance: Any = None
        self._senders: dict[str, Callable[..., list[int]]] = {}
        self.emissions = 0
        self._at_once: list[tuple[Any, tuple[Any, ...]]] = []
        """What was emitted with a message id where there is no acker: message id, values; acked as soon as `next_tuple` is back."""
        self._tracked: list[tuple[int, Any, _Message]] = []
        """What was emitted and neither `pending` nor an acker has heard of: root, message id, message."""
        self._inits: list[tuple[int, int]] = []
        target = component.declaration.target
        self._file = (
            None if target is None else file_of(target, "next_tuple" if component.declaration.is_class else None)
        )

    # -- life ----------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        declaration = self.component.declaration
        collector = SpoutCollector(self)
        self._senders = {name: self.outbox.sender(name) for name in self.component.outputs}
        if self._read is not None:
            self.source = self._read(collector)
        elif declaration.kind is ComponentKind.INPUT:
            self.source = InputSource(collector)
        elif declaration.is_class:
            self._instance = self._guarded("when it was made", _target(declaration))
            if getattr(self._instance, "open", None) is not None:
                self._guarded("in open", self._instance.open, self.context, collector)
            self.source = ObjectSource(self._instance, declaration.values_back)
        elif declaration.style is CallStyle.ROWS:
            schema = declaration.outputs[DEFAULT_STREAM]
            returned = self._guarded("when it was called", _target(declaration))
            self.source = RowsSource(rows_of(returned, schema, DEFAULT_STREAM), collector)
        else:
            self.source = FunctionSource(_target(declaration), collector)
        self._track()

    def activate(self) -> None:
        """Go on."""
        self.active = True
        self._hook("activate")
        self._track()

    def deactivate(self) -> None:
        """Ask for no more tuples until `activate`; what is in flight goes on."""
        self.active = False
        self._hook("deactivate")
        self._track()

    def close(self) -> None:
        self._hook("close")
        self._instance = None

    # -- steps ---------------------------------------------------------------------------------------------------------

    def step(self, limit: int | None) -> bool:
        """Hear what the ackers say, then ask the source for tuples while there is room and it has some."""
        moved = super().step(limit)
        self._track()
        before = self.emissions
        self.dry = True
        if self.active:
            self._ask(_BURST if limit is None else limit)
            self._track()
        return moved or self.emissions > before

    def _ask(self, times: int) -> None:
        """Ask the source for tuples, so many times at most; `dry` says whether it had none."""
        source, room, tracked, where = self.source, self.pending.room, self._tracked, _ASKED
        next_tuple, at_once = source.next_tuple, self._at_once
        self.dry = False
        try:
            for _ in range(times):
                if len(tracked) >= room:
                    return
                before = self.emissions
                if not source.over:
                    next_tuple()
                if at_once:
                    where = _ACKED
                    self._ack_at_once()
                    where = _ASKED
                if self.emissions == before:
                    self.dry = True
                    return
        except BaseException as problem:
            raise self._attributed(problem, where) from _cause(problem)

    def _track(self) -> None:
        """Take note of what was emitted with a message id, and begin its trees, in one message for each acker."""
        if self._tracked:
            self.pending.emitted_all(self._tracked, self.router.now_ms)
            self.router.init_all(self._inits, self.id)
            self._tracked, self._inits = [], []

    def handle(self, message: Acked | AckedRoots | Failed) -> None:
        now_ms = self.router.now_ms
        if isinstance(message, AckedRoots):
            self._perform(self.pending.acked_all(message.roots, now_ms))
        elif isinstance(message, Acked):
            self._perform(self.pending.acked(message.root, now_ms))
        else:
            self.router.result.failures += 1
            self._perform(self.pending.failed(message.root, now_ms, message.reason, message.seen))

    def tick(self) -> None:
        self._perform(self.pending.tick(self.router.now_ms))
        self._track()

    def next_deadline_ms(self) -> int | None:
        return self.pending.next_deadline_ms()

    def emit(self, values: Any, stream: str, message_id: Any, task: int | None) -> Sequence[int]:
        """Check a row, send it, and track it if it has a message id; return the ids of the tasks it went to."""
        converted = self._converters.get(stream) if task is None else None
        checked = self._streams.checked(values, stream, task is not None) if converted is None else converted(values)
        if message_id.__hash__ is None:
            raise ConfigError(
                f"a message id is hashable, got {quote(message_id)}; use a number, a text, or a tuple of such"
            )
        self.emissions += 1
        if message_id is not None and self._acking:
            return self._send(checked, stream, message_id, task)
        if message_id is not None:
            self._at_once.append((message_id, checked))
        return self._senders[stream](checked, (), task)

    def refuse(self, given: tuple[Any, ...], method: str) -> Exception:
        """Return the error of an emit whose arguments have no names."""
        return self._streams.refuse(given, "message_id", method)

    # -- what becomes of messages ----------------------------------------------------------------------------------------

    def _send(self, values: tuple[Any, ...], stream: str, message_id: Any, task: int | None) -> Sequence[int]:
        """Send a row as a message that is in flight until its tree is acked."""
        root = self.router.edge()
        tree = [root, 0]
        ids = self._senders[stream](values, (), task, tree)
        self._tracked.append((root, message_id, (values, stream, task)))
        self._inits.append((root, tree[1]))
        return ids

    def _ack_at_once(self) -> None:
        """Ack what was emitted until now; what the source emits in `ack` waits for the next tuple."""
        result, ack, emitted = self.router.result, self.source.ack, self._at_once.copy()
        self._at_once.clear()
        for message_id, values in emitted:
            result.acked += 1
            ack(message_id, values)

    def _perform(self, effects: Iterable[Done | Retry | GivenUp]) -> None:
        result, ack = self.router.result, self.source.ack
        for effect in effects:
            payload = effect.payload
            if type(payload) is DeadLetter:
                self._dead_letter_ended(effect, payload)
                continue
            values, stream, task = payload
            if type(effect) is Done:
                result.acked += 1
                try:
                    ack(effect.message_id, values)
                except BaseException as problem:
                    raise self._attributed(problem, _ACKED) from _cause(problem)
            elif isinstance(effect, Retry):
                if not self._guarded("in fail", self.source.fail, effect.message_id, values):
                    self._send(values, stream, effect.message_id, task)
            elif isinstance(effect, GivenUp):
                self._give_up(effect, values, stream)

    def _give_up(self, effect: GivenUp, values: tuple[Any, ...], stream: str) -> None:
        """Make a dead letter of a message, and send it to whoever reads it."""
        component = self.context.component
        context, fields = self.context, Fields(self.component.outputs[stream].schema.names)
        origin = Origin(component, context.task_index, fields, stream, context.task_ids)
        letter = DeadLetter(
            component=effect.seen or component,
            task=None,
            attempts=effect.attempts,
            error=effect.reason.value,
            tuples=[Tuple(values, origin)],
            message_id=effect.message_id,
        )
        self.router.result.dead_letters.append(letter)
        if letter.component in self.router.dead_letter_outboxes:
            self._send_dead_letter(letter)
        else:
            self._guarded("in give_up", self.source.give_up, letter, False)

    def _send_dead_letter(self, letter: DeadLetter) -> None:
        router, root = self.router, self.router.edge()
        tree = [root, 0]
        ids = router.dead_letter_outboxes[letter.component].send(DEAD_LETTERS, letter.row(), tree=tree)
        if not ids:  # an output of the run is nobody who could be done with it
            self._guarded("in give_up", self.source.give_up, letter, False)
            return
        self._tracked.append((root, (_DEAD, letter.message_id), letter))
        self._inits.append((root, tree[1]))

    def _dead_letter_ended(self, effect: Done | Retry | GivenUp, letter: DeadLetter) -> None:
        """Send a dead letter again that its readers failed; at its end `give_up` is called, also if it was given up itself."""
        if isinstance(effect, Retry):
            self._send_dead_letter(letter)
            return
        taken = isinstance(effect, Done)
        heard = self._guarded("in give_up", self.source.give_up, letter, taken)
        if not heard and taken:
            self._guarded("in ack", self.source.ack, letter.message_id, letter.values)

    def _hook(self, method: str) -> None:
        written = getattr(self._instance, method, None)
        if written is not None:
            self._guarded(f"in {method}", written)

    def _guarded(self, where: str, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except BaseException as problem:
            raise self._attributed(problem, where) from _cause(problem)

    def _attributed(self, problem: BaseException, where: str) -> WindowingError:
        if self._read is not None and isinstance(problem, WindowingError) and not isinstance(problem, BoltError):
            return problem  # a source's own sentence
        return user_code_error(self.context.called("spout"), problem, where, self._file, (__file__,))


class SpoutCollector(StormNames):
    """What a spout emits to. Source: Storm's `SpoutOutputCollector`."""

    __slots__ = ("_emit", "_task")

    def __init__(self, task: SpoutTask) -> None:
        self._task, self._emit = task, task.emit

    def emit(self, values: Any, *stray: Any, message_id: Any = None, stream: str = DEFAULT_STREAM) -> Sequence[int]:
        """Emit one row; with a message id it is tracked. Returns the ids of the tasks that it goes to."""
        if stray:
            raise self._task.refuse((values, *stray), "emit")
        return self._emit(values, stream, message_id, None)

    def emit_direct(
        self, task: int, values: Any, *stray: Any, message_id: Any = None, stream: str = DEFAULT_STREAM
    ) -> None:
        """Emit one row to the task of this id, on a stream that is declared direct."""
        if stray:
            raise self._task.refuse((values, *stray), "emit_direct")
        self._task.emit(values, stream, message_id, task)

    def report_error(self, error: BaseException) -> None:
        """Keep an error for whoever looks at the result."""
        self._task.report_error(error)


def _cause(problem: BaseException) -> BaseException | None:
    """Return what an error that is attributed to the spout is raised from: not an error of ours, but what that came of."""
    return problem.__cause__ if isinstance(problem, WindowingError) else problem


def _target(declaration: Declaration) -> Callable[..., Any]:
    assert declaration.target is not None
    return declaration.target


class _Never(_Silent):
    """What a spout has before it is opened."""

    over = True

    def next_tuple(self) -> None:
        return None


_NEVER: TupleSource = _Never()
