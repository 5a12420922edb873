"""PartitionedSpout: a partitioned, replayable source of rows in Python; SpoutOffsets: checks of its offsets for the drivers.

    partition "0"   1 2 3 4 5 6 7 8 9        offsets: whole numbers that only grow
                    ^ initial()  ^ latest()
    a batch         (start, end] of each partition        read(partition, start, end) --> RecordBatches, the same on every call
    rows up to `end` are not read again                   commit(end)
    all tuples of a batch are done and committed          ack(root), else fail(root)
    ... and some of them became dead letters              give_up(root)

LocalCluster (local/sources.py) calls all methods in one process. On Spark (spark/spouts.py) `initial`, `latest` and `commit` run in
one Python process of the query, `read` in the executors on copies of the object, and `begin`, `ack`, `fail` and `give_up` in the
driver, under `submit` only. So a spout stores a path or a URL, and no connection.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from windowing.columnar.bolts import arrow_schema
from windowing.errors import CheckpointError, ConfigError, SourceError, quote
from windowing.schema.checks import DEFAULT_STREAM, is_whole
from windowing.schema.types import Schema

Offsets = Mapping[str, int]
"""A whole number for each partition, by name."""


@dataclass(frozen=True)
class Root:
    """One batch of a spout: the offsets (start, end] of each partition, read in batch number `batch` of the run."""

    batch: int
    start: Offsets
    end: Offsets

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """The (start, end] of each partition with at least one offset in the batch."""
        found = {name: (self.start.get(name, end), end) for name, end in self.end.items()}
        return {name: bounds for name, bounds in found.items() if bounds[0] < bounds[1]}


class PartitionedSpout(ABC):
    """Base class of sources. Pass an object to `submit(sources={"name": MySpout(...)})` or `LocalCluster(topology, sources=...)`.

    Without a topology, `MySpout(...).stream(spark)` is a streaming DataFrame.

    fields: the columns, as in `output="word string, n long"`. max_rows: the maximum number of offsets in a batch (None: no limit);
    each partition with new rows has at least one in it.
    identity: an id that changes when the source is deleted and created again, and its offsets begin again. A checkpoint stores it,
    and a source with another identity is refused (None: no check).

    A subclass that defines `ack` takes acks: a batch is acked once all its tuples have expired from their windows and the results
    are committed. After a crash an ack may be repeated, so `ack`, `fail` and `give_up` must be idempotent.

    Errors of its methods end the run. Source: Trident's partitioned spouts; Spark's DataSourceStreamReader.
    """

    fields: str = ""
    max_rows: int | None = None
    identity: str | None = None
    streams: ClassVar[Callable[[PartitionedSpout, Any, str | None], Any] | None] = None
    """The function that `stream` calls; windowing.spark sets it when it is imported."""

    @abstractmethod
    def initial(self) -> Offsets:
        """Return where a new query begins: the offsets before the first row. A partition that is added later begins here too."""

    @abstractmethod
    def latest(self) -> Offsets:
        """Return the offsets of the last rows that exist now."""

    @abstractmethod
    def read(self, partition: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition with offsets in (start, end], in order, with the columns of `fields`.

        Every call with the same arguments yields the same rows, until they are acked or committed.
        """

    def commit(self, end: Offsets) -> None:  # noqa: B027 - optional
        """Called when rows up to `end` are not read again. The call may come one batch late, and not at all for the last batch."""

    def begin(self, query: str, end: Offsets | None) -> None:  # noqa: B027
        """Called before the first batch of a spout that takes acks. query: its name; end: the offsets of its checkpoint, None
        without one.

        Raise CheckpointError if rows that the query will read are gone: the checkpoint is an older copy, or another query has read
        the source since. A LocalCluster is a new query on each start, and reads all rows that are not acked.
        """

    def ack(self, root: Root) -> None:  # noqa: B027
        """Delete a batch: all its tuples are done. Called only if a subclass defines it."""

    def fail(self, root: Root, component: str) -> None:  # noqa: B027
        """Called when `component` has failed tuples of a batch. The batch will not be acked.

        A LocalCluster calls it for a source without acks too, which may raise an error to end the run; else the run goes on with
        the other tuples of the batch.
        """

    def give_up(self, root: Root, component: str) -> None:
        """Called instead of `ack` when `component` has sent some tuples of the batch to dead letters. Default: ack the batch."""
        self.ack(root)

    def close(self) -> None:  # noqa: B027
        """Close connections at the end of the run. A later call of another method opens them again."""

    @property
    def takes_acks(self) -> bool:
        """Whether the class defines `ack`."""
        return type(self).ack is not PartitionedSpout.ack

    @property
    def _progress_key(self) -> Any:
        """By what the source itself knows its progress, None if it does not: two streams of a topology cannot share it."""
        return (self.identity or id(self)) if self.takes_acks else None

    def stream(self, spark: Any, name: str | None = None) -> Any:
        """Return the rows as a streaming DataFrame. `name` is the name of the spout in Spark's offset log.

        Raises ConfigError for invalid fields, SessionError on Spark 4.1.
        """
        made = PartitionedSpout.streams
        if made is None:
            raise ConfigError(
                f"the rows of {type(self).__name__} are a DataFrame where windowing.spark is loaded; import it first"
            )
        return made(self, spark, name)


# -- for drivers -------------------------------------------------------------------------------------------------------------------


def instead_of_class(given: Any) -> str | None:
    """Return what to write in place of the class of a source, None if it is none."""
    is_class = isinstance(given, type) and issubclass(given, PartitionedSpout)
    return f"a source is an object: write {given.__name__}(...)" if is_class else None


class SpoutOffsets:
    """The offsets of one spout for a driver. Each offset that the spout returns is checked.

    >>> SpoutOffsets(None, "words").checked({"0": 7}, {"0": 5, "1": 1})
    {'0': 7, '1': 1}
    >>> SpoutOffsets(None, "words").checked({"0": 4}, {"0": 5})
    Traceback (most recent call last):
    windowing.errors.SourceError: [SOURCE] partition '0' of spout 'words' ends at offset 4, and the query has read up to 5: \
rows were lost, or it is another source; offsets only grow
    """

    def __init__(self, spout: Any, name: str) -> None:
        self._spout, self._name = spout, name

    def initial(self) -> Offsets:
        return self.checked(self._spout.initial(), {})

    def newest(self, since: Offsets) -> Offsets:
        """Return the last offsets of the source, for a run that has read up to `since`."""
        return self.checked(self._spout.latest(), since)

    def batch(self, at: Offsets, newest: Offsets, rows: int | None) -> tuple[Offsets, dict[str, int]]:
        """Return the (start, end] of the batch after `at`, of at most `rows` rows up to `newest`; they are equal without new rows.
        New partitions begin at their initial offsets. Raises SourceError.
        """
        start, new = at, [name for name in newest if name not in at]
        if new:
            initial = self.initial()
            for name in new:
                if name not in initial:
                    raise SourceError(
                        f"partition {name!r} is in latest() of spout {self._name!r}, not in initial(); say there where it begins"
                    )
            start = {**at, **{name: initial[name] for name in new}}
        return start, limited(start, newest, rows)

    def checked(self, found: Any, since: Offsets) -> Offsets:
        """Return `since` updated by `found`. Raises SourceError for invalid offsets, and for offsets below `since`."""
        plain = isinstance(found, Mapping) and all(isinstance(name, str) and is_whole(at) for name, at in found.items())
        if not plain:
            raise SourceError(
                f"spout {self._name!r} says its offsets are {quote(found)}; wanted a whole number for each partition, by name, "
                "such as {'0': 7}"
            )
        for name, at in since.items():
            if found.get(name, at) < at:
                raise SourceError(
                    f"partition {name!r} of spout {self._name!r} ends at offset {found[name]}, and the query has read up to {at}: "
                    "rows were lost, or it is another source; offsets only grow"
                )
        return {**since, **found}


def limited(start: Offsets, newest: Offsets, rows: int | None) -> dict[str, int]:
    """Return the end offsets of a batch of at most `rows` rows, divided equally among the partitions that have rows, of at least
    one row each.

    >>> limited({"a": 0, "b": 0, "c": 0}, {"a": 3, "b": 7, "c": 0}, 4)
    {'a': 2, 'b': 2, 'c': 0}
    """
    if rows is None:
        return dict(newest)
    ready = [name for name, end in newest.items() if end > start.get(name, end)]
    each = max(1, rows // max(1, len(ready)))
    return {name: min(end, start[name] + each) if name in ready else end for name, end in newest.items()}


def fitted(batch: Any, schema: Schema, name: str) -> pa.RecordBatch:
    """Return a batch that `read` yielded, cast to the types of the fields. Raises SourceError for other columns or values."""
    wanted = arrow_schema(schema)
    if not isinstance(batch, pa.RecordBatch):
        raise SourceError(
            f"spout {name!r} gave {quote(batch)}; its read yields pyarrow RecordBatches, such as "
            "pyarrow.RecordBatch.from_pylist([row, row]) of dicts"
        )
    if batch.schema.names != wanted.names:
        raise SourceError(
            f"spout {name!r} gave columns {', '.join(batch.schema.names)}; its fields are {', '.join(wanted.names)}"
        )
    try:
        columns = [column.cast(field.type) for column, field in zip(batch.columns, wanted, strict=True)]
    except pa.ArrowException as problem:
        raise SourceError(f"spout {name!r} gave a value that is not of its field: {quote(str(problem))}") from problem
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


_WAY_OUT = (
    "put the queue back from the same copy, or begin with a new checkpoint and new output folders, which reads what the queue "
    "still has; nothing was read"
)


def whole_number(name: str, number: Any) -> int:
    """Return an option of a queue that is a whole number of at least 1. Raises ConfigError."""
    if not is_whole(number, 1):
        raise ConfigError(f"{name} of a queue is a whole number of at least 1, got {quote(number)}")
    return number


def one_of(name: str, of: str, given: Any, choices: tuple[str, str]) -> str:
    """Return an option of a source that is one of two words. Raises ConfigError."""
    if given not in choices:
        raise ConfigError(f"{name} of a {of} is {' or '.join(map(repr, choices))}, got {quote(given)}")
    return str(given)


def taken_over(what: str) -> SourceError:
    """Return the error of an ack or fail of a query when another query has begun to read its queue since."""
    return SourceError(
        f"another query has begun to read {what} since, and reads all rows that are not acked; nothing was acked or failed: end "
        "one of the two, and give each query a queue of its own"
    )


def refuse_other_source(spout: PartitionedSpout, known: Any, what: str, reader: str, way_out: str) -> None:
    """Raise CheckpointError unless `known` is the identity of the spout, or None. reader: what has read the known one."""
    if known is not None and known != spout.identity:
        where = f" at {spout.path}" if hasattr(spout, "path") else ""
        raise CheckpointError(
            f"{what} reads another {type(spout).__name__}{where} than {reader} read: its identity was "
            f"{quote(known)}, now {quote(spout.identity)}, so the old one was lost and made anew, or another is in its place, "
            f"whose first rows would count as read; put the old one back from a copy, or begin with {way_out}, which reads all "
            "that this one has; nothing was read"
        )


def refuse_forgotten(what: str, facts: Mapping[str, Any], query: str, end: Offsets | None) -> bool:
    """Raise CheckpointError if a query would miss rows of a queue; return whether it takes the queue over from another query.

    facts: "query", the name of the query that reads the queue, and "acked", the acked offset of each partition.
    """
    if facts.get("query") in (None, query):
        for partition, offset in facts["acked"].items():
            read = (end or {}).get(partition, 0)
            if offset > read:
                raise CheckpointError(
                    f"{what} was acked up to offset {offset} of partition {partition}, and this checkpoint has read "
                    f"up to {read}: it is an older copy, and the rows between are gone; {_WAY_OUT}"
                )
        return False
    if end is not None:
        raise CheckpointError(
            f"another query reads {what} since, and rows that this checkpoint has not read may be gone; {_WAY_OUT}"
        )
    return True


def of_spout(spout: str, stream: str) -> str:
    """Return how errors name a stream of a spout."""
    return f"spout {spout!r}" + ("" if stream == DEFAULT_STREAM else f", stream {stream!r},")


def require_apart(sources: Mapping[str, PartitionedSpout]) -> None:
    """Raise ConfigError for two sources that are one: rows that one reader has acked are gone before the other has read them."""
    readers: dict[Any, str] = {}
    for what, source in sources.items():
        key = source._progress_key
        other = what if key is None else readers.setdefault(key, what)
        if other != what:
            why = "forgets what is acked" if source.takes_acks else "has one position for both"
            raise ConfigError(
                f"{what} and {other} have the same source, a {type(source).__name__} that {why}, so each would "
                "lose rows that the other has read first; give it to one of them, and let all bolts read that one"
            )
