"""PartitionedSpout: a source of rows in Python, in partitions, that can be asked for a batch again; and what drivers ask of it.

    partition "0"   1 2 3 4 5 6 7 8 9        offsets: whole numbers that only grow
                    ^ initial()  ^ latest()
    a batch         (start, end] of each partition        read(partition, start, end) --> RecordBatches, the same at any time
    no more is asked for what is at or before `end`       commit(end)
    all that came of a batch is done and committed        ack(root), else fail(root)
    ... of some of its tuples there are dead letters      give_up(root)

Where it runs. LocalCluster (local/roots.py): all of it in one process. Spark (spark/spouts.py): `initial`, `latest` and `commit` in
one Python process of the query; `read` in the executors, on copies; `begin`, `ack`, `fail` and `give_up` in the driver, of
`submit` only. So a spout holds a path or a URL, no connection.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from windowing.columnar.bolts import arrow_schema
from windowing.errors import CheckpointError, ConfigError, SourceError, quote
from windowing.schema.types import Schema

__all__ = [
    "Offsets",
    "PartitionedSpout",
    "Root",
    "SpoutOffsets",
    "fitted",
    "limited",
    "refuse_forgotten",
    "whole_number",
]


Offsets = Mapping[str, int]
"""A whole number for each partition, by name."""


@dataclass(frozen=True)
class Root:
    """A batch of a spout: the offsets (start, end] of each partition that it has taken, in batch number `batch` of the run."""

    batch: int
    start: Offsets
    end: Offsets

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """The (start, end] of each partition that has given something."""
        found = {name: (self.start.get(name, end), end) for name, end in self.end.items()}
        return {name: bounds for name, bounds in found.items() if bounds[0] < bounds[1]}


class PartitionedSpout(ABC):
    """Subclass it, and give it to `submit(sources={"name": MySpout(...)})` or to `LocalCluster(topology, sources=...)`; or read it
    alone on Spark: `MySpout(...).stream(spark)`.

    fields: the columns, as in `output="word string, n long"`. max_rows: how many offsets a batch takes at most (None: all there
    are). identity: what tells this source from another one that is made in its place later, whose offsets begin anew; a checkpoint
    remembers it, and refuses the other one (None: there is nothing to tell). A subclass that defines `ack` takes acks: a batch is
    acked once, when every tuple that came of it has expired from its windows and what they led to is committed. After a crash it
    may be told twice, so `ack`, `fail` and `give_up` do no harm the second time.

    Errors of its methods end the run. Source: Trident's partitioned spouts; Spark's DataSourceStreamReader.
    """

    fields: str = ""
    max_rows: int | None = None
    identity: str | None = None
    streams: ClassVar[Callable[[PartitionedSpout, Any, str | None], Any] | None] = None
    """What `stream` calls; windowing.spark sets it when it is loaded."""

    @abstractmethod
    def initial(self) -> Offsets:
        """Return where a new query begins: the offsets before the first row. A partition that comes later begins here too."""

    @abstractmethod
    def latest(self) -> Offsets:
        """Return the offsets of the last rows that there are now."""

    @abstractmethod
    def read(self, partition: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition with offsets in (start, end], in order, with the columns of `fields`.

        Until they are acked or committed: whenever it is asked, the same.
        """

    def commit(self, end: Offsets) -> None:  # noqa: B027 - a spout may leave it out
        """Take note that no more is asked for rows up to `end`. It may come one batch late, and not for the last one."""

    def begin(self, query: str, end: Offsets | None) -> None:  # noqa: B027
        """Take note that a run begins of the query of this name, whose checkpoint has read up to `end` (None: nothing yet).

        Called before the first batch, of a spout that takes acks. One that has forgotten what such a query will ask for raises
        CheckpointError: the checkpoint was put back from an older copy, or another query has read here since. A LocalCluster is a
        new query each time it begins, and reads what is not acked.
        """

    def ack(self, root: Root) -> None:  # noqa: B027
        """Forget a batch: all that came of it is done. Called only if a subclass defines it."""

    def fail(self, root: Root, component: str) -> None:  # noqa: B027
        """Take note that a component has failed tuples of a batch. It is not acked any more."""

    def give_up(self, root: Root, component: str) -> None:
        """Take note that a batch is done, in place of `ack`: a component made dead letters of some of its tuples, and who reads
        those is done with them. Left out, the batch is acked.
        """
        self.ack(root)

    def close(self) -> None:  # noqa: B027
        """End what is open to a server: the run is over. Whatever is called later opens it again."""

    @property
    def takes_acks(self) -> bool:
        """Whether the class defines `ack`."""
        return type(self).ack is not PartitionedSpout.ack

    def stream(self, spark: Any, name: str | None = None) -> Any:
        """Return the rows as a streaming DataFrame. `name` is how the spout is called in Spark's offset log.

        Raises ConfigError for fields that are none, SessionError on Spark 4.1.
        """
        made = PartitionedSpout.streams
        if made is None:
            raise ConfigError(
                f"the rows of {type(self).__name__} are a DataFrame where windowing.spark is loaded; import it first"
            )
        return made(self, spark, name)


# -- what drivers ask --------------------------------------------------------------------------------------------------------------


class SpoutOffsets:
    """What a driver knows of one spout: how it is called, and how to ask for its offsets. Every answer is checked.

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
        """Return where a new run begins."""
        return self.checked(self._spout.initial(), {})

    def newest(self, since: Offsets) -> Offsets:
        """Return how far the source is, for a run that has read up to `since`."""
        return self.checked(self._spout.latest(), since)

    def begun(self, at: Offsets, newest: Offsets) -> Offsets:
        """Return where a batch begins that follows `at`: new partitions at their initial offsets. Raises SourceError."""
        new = [name for name in newest if name not in at]
        if not new:
            return at
        initial = self.initial()
        for name in new:
            if name not in initial:
                raise SourceError(
                    f"partition {name!r} is in latest() of spout {self._name!r}, not in initial(); say there where it begins"
                )
        return {**at, **{name: initial[name] for name in new}}

    def checked(self, found: Any, since: Offsets) -> Offsets:
        """Return `since` with what was found. Raises SourceError for what are no offsets, and for those that went back."""
        plain = isinstance(found, Mapping) and all(
            isinstance(name, str) and isinstance(at, int) and not isinstance(at, bool) for name, at in found.items()
        )
        if not plain:
            raise SourceError(
                f"spout {self._name!r} says its offsets are {quote(found)}; wanted a whole number for each partition, by name"
            )
        for name, at in since.items():
            if found.get(name, at) < at:
                raise SourceError(
                    f"partition {name!r} of spout {self._name!r} ends at offset {found[name]}, and the query has read up to {at}: "
                    "rows were lost, or it is another source; offsets only grow"
                )
        return {**since, **found}


def limited(start: Offsets, newest: Offsets, rows: int | None) -> dict[str, int]:
    """Return where a batch of so many rows ends, the same number for each partition that has some.

    >>> limited({"a": 0, "b": 0, "c": 0}, {"a": 3, "b": 7, "c": 0}, 4)
    {'a': 2, 'b': 2, 'c': 0}
    """
    if rows is None:
        return dict(newest)
    ready = [name for name, end in newest.items() if end > start.get(name, end)]
    each = max(1, rows // max(1, len(ready)))
    return {name: min(end, start[name] + each) if name in ready else end for name, end in newest.items()}


def fitted(batch: Any, schema: Schema, name: str) -> pa.RecordBatch:
    """Return what `read` has given with the columns of its fields. Raises SourceError for columns of others."""
    wanted = arrow_schema(schema)
    if not isinstance(batch, pa.RecordBatch):
        raise SourceError(f"spout {name!r} gave {quote(batch)}; its read yields pyarrow RecordBatches")
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
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ConfigError(f"{name} of a queue is a whole number of at least 1, got {quote(number)}")
    return number


def refuse_forgotten(what: str, facts: Mapping[str, Any], query: str, end: Offsets | None) -> bool:
    """Raise CheckpointError for a query that would miss rows of a queue; return whether it takes the queue over from another.

    facts: the "query" that reads it, and up to which offsets it has "acked", by partition.
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
