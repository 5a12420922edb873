"""BatchWriter, the function of foreachBatch: evaluates a batch, commits it, writes its streams to their sinks, records its acks.

    one stream, into few files or none --> ONE job evaluates, counts and writes
    else     persist --> one job evaluates the whole batch --> each stream with rows to its sink --> acks
                (Trident: attempts, each with the commits of its states; trident_commits.py)

Laws
- No written row is visible before everything that may fail has been evaluated.
- A batch is evaluated once per attempt.
- Every error escapes; Spark would count a batch with a swallowed error as done.
- The two output formats, of `windowed` (`Layout`) and of topologies (`SinkStreams`), have the same methods.
- Rows are counted during the evaluation, by the observation of `metrics.py`; where that may be wrong, by the driver or a job.
- The tasks with windows or a state are the last stage of the job that evaluates a batch: if rows that they need are lost and come
  again in another order, Spark ends that job. In front of a shuffle it would make again only those tasks whose rows are not kept.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import StructType
from pyspark.util import PythonEvalType

from windowing.columnar.rows import decode_table
from windowing.errors import BoltError, SinkError, WindowingError, describe_error
from windowing.execution.metrics import LateLog
from windowing.spark import failpoints
from windowing.spark.acks import Acks
from windowing.spark.exchange import CLOCK_PROPERTY, set_evaluated
from windowing.spark.failures import WorkerError, text_for_jvm
from windowing.spark.hadoop import failed_in_task
from windowing.spark.metrics import BatchMetrics, LastExecution
from windowing.spark.operator import ArrowStage
from windowing.spark.output import Layout, evaluate
from windowing.spark.sinks import ComparedSink, FileSink, NoopSink, ParquetSink, Sink
from windowing.spark.spouts import in_spark, struct_of

if TYPE_CHECKING:
    from windowing.spark.checkpoint import Checkpoint
    from windowing.spark.hadoop import Folder
    from windowing.spark.trident_commits import TridentCommits

_KEPT_BATCHES = 10_000
"""Of how many batches, at most, the driver holds numbers of its own."""
_ONE_FILE_ROWS = 50_000
_FEW_FILES = 4
"""The largest number of partitions with which a small batch is written as one file per partition."""
_IN_ONE_JOB: tuple[type, ...] = (FileSink, ParquetSink, NoopSink)
"""The sinks that evaluate their rows once, in one job, and show nothing before its end."""
_KEEP_LATE = (
    "give the late stream (late_stream= names it), or of a bolt without windows the dead_letters, a sink to keep them"
)

_log = logging.getLogger("windowing.spark")


class Columns:
    """Expressions over the rows of each batch. Their columns are made once: each expression is a call of the JVM, and a list of
    them five more.
    """

    def __init__(self, *expressions: str | Column) -> None:
        self._expressions, self._made = expressions, cast(Any, None)

    def select(self, rows: DataFrame) -> DataFrame:
        return DataFrame(cast(Any, rows)._jdf.select(self._of(rows)), rows.sparkSession)

    def repartition(self, rows: DataFrame, partitions: int) -> DataFrame:
        return DataFrame(cast(Any, rows)._jdf.repartition(partitions, self._of(rows)), rows.sparkSession)

    def _of(self, rows: DataFrame) -> Any:
        if self._made is None:
            self._made = cast(Any, rows)._jcols(*[F.expr(x) if isinstance(x, str) else x for x in self._expressions])
        return self._made


class MapInArrow:
    """`mapInArrow` of a stage over these columns of each batch. Its function is made once: a pickle, and forty calls of the JVM."""

    def __init__(self, stage: ArrowStage, columns: Iterable[str], schema: StructType | str) -> None:
        self._stage, self._columns, self._schema = stage, columns, schema
        self._made: Any = None

    def of(self, rows: DataFrame) -> DataFrame:
        if self._made is None:
            udf: Any = pandas_udf(self._stage, self._schema, cast(Any, PythonEvalType.SQL_MAP_ARROW_ITER_UDF))
            self._made = udf(*map(F.col, self._columns))._jc
        return DataFrame(cast(Any, rows)._jdf.mapInArrow(self._made, False, None), rows.sparkSession)


_DRIVER_COLUMNS = (
    *("kind", "stream", "source", "sequence", "value"),
    "CASE WHEN kind NOT IN ('rows', 'out', 'input') THEN data END AS data",
)


class SinkStreams:
    """The streams by sink name: the name of each in exchange rows, and its schema.

    unread: the bolts whose late stream has no reader and no sink.
    """

    def __init__(self, streams: Mapping[str, tuple[str, str]], unread: tuple[str, ...]) -> None:
        self._streams, self._unread = dict(streams), unread
        self._unpacked = {
            name: MapInArrow(_Unpacked(), ["data"], in_spark(schema)) for name, (_, schema) in self._streams.items()
        }
        self._for_driver = Columns(*_DRIVER_COLUMNS)

    def schema_of(self, stream: str) -> StructType:
        return struct_of(self._streams[stream][1])

    def count(self, stream: str) -> Column:
        """Return the aggregate that counts the rows of a stream."""
        return F.sum(F.when(self.condition(stream), F.col("value")))

    def late(self) -> Column:
        """Return the aggregate that counts late and unreadable tuples without a reader or sink."""
        late = (F.col("source") == "late") & F.col("stream").isin(*self._unread)
        nowhere = (F.col("kind") == "metric") & (late | (F.col("source") == "invalid"))
        return F.sum(F.when(nowhere, F.col("value")))

    def largest(self) -> Column:
        """Return the aggregate of the packed bytes of the largest task, None if no task had rows."""
        return F.max(F.when((F.col("kind") == "metric") & (F.col("source") == "bytes"), F.col("value")))

    def evaluated(self, output: DataFrame) -> dict[str, Any]:
        """Evaluate exchange rows; return what they count."""
        return self.found_in(self.for_driver(output))

    def for_driver(self, output: DataFrame) -> list[Row]:
        """Evaluate exchange rows and return those for the driver, a few of each task; to add them in Spark would take a shuffle."""
        return self._for_driver.select(output).collect()

    def found_in(self, rows: Iterable[Row]) -> dict[str, Any]:
        """Return the results of the aggregates of `count`, by the number of the stream, of `late` and of `largest` for the rows
        of `for_driver`, and the partials of acks.
        """
        sinks = Counter[str]()
        late, largest, acks = 0, 0, []
        for row in rows:
            if row["kind"] == "out":
                sinks[row["stream"]] += row["value"]
            elif row["kind"] == "ack":
                acks.append(row["data"])
            elif row["kind"] == "metric" and row["source"] == "bytes":
                largest = max(largest, row["value"])
            elif row["kind"] == "metric" and (
                row["source"] == "invalid" or (row["source"] == "late" and row["stream"] in self._unread)
            ):
                late += row["value"]
        counts = {f"_count{n}": sinks[stream] for n, (stream, _) in enumerate(self._streams.values())}
        return {**counts, "_late": late, "_largest": largest, "acks": acks}

    def condition(self, stream: str) -> Column:
        """Return the condition on the rows of a stream. Cost: many calls of the JVM."""
        return (F.col("kind") == "out") & (F.col("stream") == self._streams[stream][0])

    def columns(self, stream: str) -> list[str]:
        return ["data"]

    def unpacked(self, packed: DataFrame, stream: str) -> DataFrame:
        """Return the rows of a stream, of which `packed` has the columns."""
        return self._unpacked[stream].of(packed)


class _Unpacked(ArrowStage):
    """Unpacks exchange rows into the rows of a stream, in a worker."""

    def pack(self, batches: Iterator[pa.RecordBatch], partition: int, number: int) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for data in batch.column(0).to_pylist():
                yield from decode_table(data).to_batches()


LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch"
SMALL_BYTES = 128 << 20
"""The largest packed size of a task in a batch with which the next batch runs without the limit."""
_NO_LIMIT = str(2**31 - 1)


class ArrowBatchLimit:
    """Lifts Spark's limit on the bytes that Python gets at once, which Spark checks for each field, if the last batch was small;
    one object per run of a query in this session. The first batch runs with the limit.

    Law: the limit decides how rows are cut into Arrow batches, never the result. Without it all rows of a task may be one Arrow
    batch, which cannot exceed 2 GiB. A batch that is many times larger than the previous one, and fails for that reason, ends the
    query; the next start repeats it with the limit.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._largest: int | None = None
        self._is_users = spark.conf.get(LIMIT, None) is not None

    def took(self, largest: int | None) -> None:
        """Record the packed bytes of the largest task of a batch; None if no task had rows."""
        self._largest = largest or 0

    @contextmanager
    def of_batch(self, spark: SparkSession) -> Iterator[None]:
        """Lift the limit inside the `with` block, unless the batch may be large or the user has set the limit."""
        if self._largest is None or self._largest > SMALL_BYTES or self._is_users:
            yield
            return
        spark.conf.set(LIMIT, _NO_LIMIT)
        try:
            yield
        finally:
            spark.conf.unset(LIMIT)


class BatchWriter:
    """The function of foreachBatch. `sinks`: by stream, in order; `acks`: for spouts that take acks; `commits`: for a query that
    writes states.
    """

    def __init__(
        self,
        name: str,
        streams: Layout | SinkStreams,
        sinks: Mapping[str, Sink],
        log_late: bool,
        acks: Acks | None = None,
        commits: TridentCommits | None = None,
    ) -> None:
        self.name, self._streams, self.sinks, self._logs_late = name, streams, dict(sinks), log_late
        self._late = LateLog(_log.warning, name, "query.metrics()", _KEEP_LATE)
        self._counts = {stream: f"_count{number}" for number, stream in enumerate(self.sinks)}
        self._conditions = {stream: streams.condition(stream) for stream in self.sinks}
        self._columns = {stream: Columns(*streams.columns(stream)) for stream in self.sinks}
        self.acks, self._commits = acks, commits
        self.failed_batch: int | None = None
        self.failure: BaseException | None = None
        self.calling: tuple[int, threading.Event] | None = None
        """While Spark calls this object: the thread of the call, and what is set when it ends."""
        self.reported = 0
        """The number of errors that user code reported in this batch, in stages that the commit section evaluates."""
        self.written: dict[str, int] = {}
        """By stream, the last batch before this one that its sink has taken; `committed` adds this one."""
        self._targets = {stream: repr(sink) for stream, sink in sinks.items() if isinstance(sink, ComparedSink)}
        self._delivered: tuple[int, list[str]] = -1, []
        """This batch, and the streams of it whose sinks have taken rows."""
        self.progress = deque[BatchMetrics](maxlen=_KEPT_BATCHES)
        """The metrics of the last batches of this run, in order."""
        self._observed: Mapping[str, Any] = {}
        self._limit: ArrowBatchLimit  # made by `begin`, as are the next two
        self._last: LastExecution
        self._before: Callable[[int], None] | None
        self._is_one_job = False
        self._counting: list[Column] = []
        """The columns that count the rows of a batch."""
        self._is_observed = True
        """Whether they are observed while a batch is evaluated."""
        self._components = name

    def attach(self, partitions: int, counts_once: bool, components: str) -> list[Column]:
        """Decide how batches of this number of partitions are counted and written; return the columns to observe in a batch.
        components: what the job that evaluates a batch is described with.

        The columns are not observed where there are acks (a list cannot be observed), where rows that are kept may be observed
        twice (session.counts_once), and for Trident, which evaluates more than the query.
        """
        self._components = components
        if self._commits is not None:
            return []
        self._counting = [self._streams.count(stream).alias(name) for stream, name in self._counts.items()]
        self._counting += [self._streams.late().alias("_late"), self._streams.largest().alias("_largest")]
        kinds = [type(sink) for sink in self.sinks.values()]
        few = kinds == [NoopSink] or partitions <= _FEW_FILES
        self._is_one_job = self.acks is None and few and len(kinds) == 1 and kinds[0] in _IN_ONE_JOB
        self._is_observed = self._is_one_job or (self.acks is None and counts_once)
        return self._counting if self._is_observed else []

    def kept_by(self, checkpoint: Checkpoint) -> Iterator[str]:
        """Yield the names of the states that keep what an earlier attempt at the last batch has written."""
        last = checkpoint.last_batch()
        if self._commits is not None and last is not None:
            yield from self._commits.kept_by(last)

    def begin(self, spark: SparkSession, before: Callable[[int], None] | None = None) -> None:
        """Begin a run, before the query starts in this session. before: called with the number of each batch, first."""
        self._limit, self._last, self._before = ArrowBatchLimit(spark), LastExecution(spark), before

    def end(self) -> None:
        """End a run, when Spark does not call this object any more."""
        self._last.close()
        if self._commits is not None:
            self._commits.close()
        self._late.end()

    def __call__(self, output: DataFrame, batch_id: int) -> None:
        """Evaluate the batch once and write its streams."""
        ended = threading.Event()
        self.calling = threading.get_ident(), ended
        try:
            context = output.sparkSession.sparkContext
            # For the next jobs of this thread, in Spark's UI; Spark resets it for each batch.
            context.setJobDescription(f"{self.name}, batch {batch_id}: evaluates {self._components}")
            context.setLocalProperty(CLOCK_PROPERTY, str(self._last.clock()))
            # It may be set by the batch before, or by the sink that has started this query.
            set_evaluated(output.sparkSession, None)
            before, streams = self._delivered
            if before < batch_id:  # it is committed; else it is repeated, and may have other streams
                self.written.update(dict.fromkeys(streams, before))
            self._delivered = batch_id, []
            failpoints.hit("before_batch", batch_id)
            if self._before is not None:
                self._before(batch_id)
            if self.acks is not None:
                self.acks.begin(batch_id)
            if self._commits is not None:
                self._commits.commit(output, batch_id, self)
            elif self._is_one_job:
                self._write_at_once(output, batch_id)
            else:
                output.persist()
                try:
                    self.deliver(output, self._evaluated(output), batch_id)
                except BaseException:
                    with suppress(Exception):  # an interruption breaks the connection, and is what is to be told
                        output.unpersist()
                    raise
                output.unpersist()
            if self.progress and self.progress[-1].batch_id == batch_id:  # it is repeated
                self.progress.pop()
            self.progress.append(BatchMetrics.of(batch_id, self._observed, self.reported))
            failpoints.hit("before_commit", batch_id)
        except BaseException as error:
            self.failure, self.failed_batch = error, batch_id
            told = text_for_jvm(error)
            if told is None:
                raise
            raise WorkerError(told) from None
        finally:
            self.calling = None
            ended.set()

    def go_on(self, written: Mapping[str, tuple[str, int]]) -> dict[str, int]:
        """Take over, from what `committed` returned in an earlier run, the last batches of the sinks that this run has too; return
        them by stream.
        """
        known = {stream: batch for stream, (sink, batch) in written.items() if self._targets.get(stream) == sink}
        self.written.update(known)
        return known

    def committed(self, commits: Folder) -> dict[str, tuple[str, int]]:
        """Return, by stream, its ComparedSink and the last committed batch that this has taken. commits: Spark's folder. Cost: a
        look-up.
        """
        batch, streams = self._delivered
        found = {**self.written, **(dict.fromkeys(streams, batch) if streams and commits.exists(str(batch)) else {})}
        return {stream: (sink, found[stream]) for stream, sink in self._targets.items() if stream in found}

    @property
    def schemas(self) -> dict[str, StructType]:
        return {stream: self._streams.schema_of(stream) for stream in self.sinks}

    def _write_at_once(self, output: DataFrame, batch_id: int) -> None:
        """Let the only sink's job evaluate the batch. The output of a batch that has no rows is removed."""
        ((stream, sink),) = self.sinks.items()
        try:
            with self._limit.of_batch(output.sparkSession):
                sink.write(self._rows(output, stream), batch_id)
        except SinkError as error:
            problem = error.__cause__
            if problem is not None and isinstance(sink, FileSink) and failed_in_task(problem, sink.path):
                raise problem from None  # the evaluation has failed, not the write
            raise
        counts = self.observe()
        self._limit.took(counts["_largest"])
        if counts[self._counts[stream]]:
            self._delivered[1].append(stream)
        elif hasattr(sink, "skip"):
            sink.skip(batch_id)
        failpoints.hit("in_sink", batch_id)
        self._say_late(counts)

    def _rows(self, output: DataFrame, stream: str) -> DataFrame:
        rows = self._columns[stream].select(output.where(self._conditions[stream]))
        return self._streams.unpacked(rows, stream)

    def _evaluated(self, output: DataFrame) -> Any:
        counts: Any = None
        with self._limit.of_batch(output.sparkSession):
            if self._is_observed:
                evaluate(output)
            else:
                counts = self._streams.evaluated(output)
        observed = self.observe()
        set_evaluated(output.sparkSession, "all")
        if self._is_observed:
            counts = observed
        elif counts is None:
            counts = output.agg(*self._counting).first()
        self._limit.took(counts["_largest"])
        return counts

    def observe(self) -> Mapping[str, Any]:
        """Keep the observation of the batch that was just evaluated, and return it. Later Spark adds rows that it makes again for a
        sink.
        """
        self._observed = self._last.observed()
        return self._observed

    def deliver(self, output: DataFrame, counts: Any, batch_id: int) -> None:
        """Write the streams. counts: the number of rows of each stream, the late tuples, and the acks."""
        spark = output.sparkSession
        set_evaluated(spark, "all")
        for stream, sink in self.sinks.items():
            count = counts[self._counts[stream]]
            try:
                if count:
                    spark.sparkContext.setJobDescription(f"{self.name}, batch {batch_id}: writes {stream}")
                    rows = self._rows(output, stream)
                    sink.write(rows.coalesce(1) if count <= _ONE_FILE_ROWS else rows, batch_id)
                    self._delivered[1].append(stream)
                elif hasattr(sink, "skip"):
                    sink.skip(batch_id)
            except BaseException as problem:
                where = f"the sink of stream {stream!r} of {self.name!r}"
                if isinstance(problem, Exception):
                    if not isinstance(problem, WindowingError):
                        problem.add_note(f"In {where}, on batch {batch_id}, which is not committed.")
                    raise
                raise BoltError(
                    f"{where} ended with {describe_error(problem)} on batch {batch_id}, which is not committed; let a sink raise "
                    "an Exception"
                ) from problem
            failpoints.hit("in_sink", batch_id)
        if self.acks is not None:
            self.acks.record(batch_id, counts["acks"])
        self._say_late(counts)

    def _say_late(self, counts: Any) -> None:
        """Log, at most once a minute and when the run ends, that late tuples are dropped: they have no reader and no sink."""
        late = (counts["_late"] or 0) if self._logs_late else 0
        if late or self._late.unlogged:
            self._late.add(late, time.monotonic())
