"""Assembly: an ExecutionPlan as ONE Spark query; the common part of `windowed`, `submit` and `submit_trident`.

    rows of the sources, packed ------------------------+
    control files, ticks (control.py), to every task ---+--> depth 1 --> depth 2 ... --> the rows of foreachBatch
                                                             groupBy(label).transformWithState, a label for each task of the depth

Each of the three checks its arguments, the common ones by the functions at the end, and supplies the packing of its sources, the
work of a task, and the writer.

Law: the sources of a query and their order depend on the plan alone, because a checkpoint identifies them by position.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, reduce
from itertools import chain
from typing import Any, Literal

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import DataType, StructType

from windowing.errors import ConfigError, quote
from windowing.execution.compatibility import Definition
from windowing.execution.plan import ExecutionPlan, Section
from windowing.queues.spout import PartitionedSpout
from windowing.spark import control, metrics
from windowing.spark.checkpoint import Checkpoint, common_part
from windowing.spark.control import task_labels
from windowing.spark.exchange import BATCH_CLOCK, CLOCK_APART, EXCHANGE
from windowing.spark.hadoop import checked_folder, literal_path
from windowing.spark.metrics import MetricsChannel
from windowing.spark.operator import TaskTurn, evaluated
from windowing.spark.output import is_of_windows, output_metric
from windowing.spark.running import QuerySpec, WindowedQuery, trigger_options
from windowing.spark.session import counts_once
from windowing.spark.spouts import arrow_type_in_spark, is_packed_by_cores, operators_of
from windowing.spark.writer import BatchWriter
from windowing.topology.plan import Topology
from windowing.windows.config import WindowConfig, refuse_drain
from windowing.windows.measures import Duration

_REFUSED = (
    *("TimeType", "DayTimeIntervalType", "YearMonthIntervalType", "CalendarIntervalType"),
    *("VariantType", "GeometryType", "GeographyType"),
)
"""The types of columns whose values Spark cannot transfer to Python code and back."""


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """A plan, and how Spark runs it in shuffles of `partitions` partitions.

    inputs: the rows of each source. windows: their configurations. sources: returns the rows packed, for the expression of the
    clock. turn: the worker code of the tasks of the stream. schema: of the rows behind the last depth.
    drawn: what the page of the query draws, by default the plan.
    """

    spark: SparkSession
    plan: ExecutionPlan
    partitions: int
    inputs: Collection[DataFrame]
    windows: Collection[WindowConfig]
    sources: Callable[[str], Sequence[DataFrame]]
    turn: TaskTurn
    schema: StructType = EXCHANGE
    drawn: Topology | None = None

    @property
    def needs_ticks(self) -> bool:
        """Whether a window can fire by time alone."""
        return any(map(control.needs_ticks, self.windows))

    @cached_property
    def labels(self) -> Mapping[int, tuple[int, ...]]:
        """The grouping keys of the tasks of each depth. Raises ConfigError for too many."""
        depths = sorted({task.stage.depth for task in self.plan.tasks})
        return {depth: task_labels(self.spark, len(self.plan.tasks_at(depth)), self.partitions) for depth in depths}

    def rows(
        self,
        control_folder: str | None,
        clock: str = BATCH_CLOCK,
        channel: MetricsChannel | None = None,
        ticks: bool | None = None,
    ) -> DataFrame:
        """Return the rows behind the last depth of the stream; each call creates a new chain of operators.

        clock: CLOCK_APART if the driver sends the clock of each batch separately. channel: receives the metrics of the workers.
        ticks: whether there are ticks; by default if the windows need them.
        """
        parts = list(self.sources(clock))
        tasks = [task.number for task in self.plan.tasks if task.stage.section is Section.STREAM]
        if control_folder is not None:
            parts.append(control.control_rows(self.spark, literal_path(control_folder), tasks or (-1,), clock))
        if self.needs_ticks if ticks is None else ticks:
            parts.append(control.tick_rows(self.spark, tasks, clock))
        rows: DataFrame = reduce(DataFrame.unionByName, parts)
        depths = self.plan.depths(Section.STREAM)
        for depth in depths:
            schema = self.schema if depth == depths[-1] else EXCHANGE
            first, has_values = self.plan.tasks_at(depth)[0].number, self.plan.has_states_at(depth)
            rows = evaluated(rows, self.turn, self.labels[depth], first, schema, channel, has_values=has_values)
        return rows

    def start(
        self,
        checkpoint: Checkpoint,
        stored: Definition,
        writer: BatchWriter,
        channel: MetricsChannel,
        *,
        trigger: Literal["available_now"] | Duration | timedelta,
        drain: bool,
        query_name: str | None,
    ) -> WindowedQuery:
        """Start the query. stored: the definition stored with the checkpoint, in addition to that of every query. channel: of this
        run, also for the functions in `sources`.
        """
        if drain:
            refuse_drain(self.windows)
            _require_drained(self.plan.name, self.inputs)
        chosen = trigger_options(trigger, drain)
        if query_name is not None and query_name in {query.name for query in self.spark.streams.active}:
            raise ConfigError(
                f"query_name={quote(query_name)} is the name of a query that runs in this session; stop that one, or give this one "
                "another name"
            )
        _ = self.labels  # too many tasks are refused before anything is written
        counted = metrics.metric_columns(metrics.exchange_metric if self.schema == EXCHANGE else output_metric)
        components = ", ".join(f"{stage.component} x{stage.parallelism}" for stage in self.plan.stages.values())
        counted += writer.attach(self.partitions, counts_once(self.spark), components)
        spec = QuerySpec(
            checkpoint=checkpoint,
            definition=common_part(checkpoint, any(map(is_packed_by_cores, self.inputs))) | stored,
            output=lambda folder: metrics.observed(
                self.rows(folder, CLOCK_APART, channel, control.keep_ticks(checkpoint, self.needs_ticks)),
                counted,
            ),
            writer=writer,
            partitions=self.partitions,
            trigger=chosen,
            query_name=query_name,
            drawn=self.drawn or self.plan,
            totals=channel.totals,
        )
        return WindowedQuery.start(spec, drain)


def _require_drained(name: str, inputs: Iterable[DataFrame]) -> None:
    """Raise ConfigError for an input that comes from windows of another bolt: the drain of a query does not reach them, so the last
    ones would be lost.
    """
    for operator, _ in chain.from_iterable(map(operators_of, inputs)):
        if operator.nodeName().startswith("TransformWithState") and is_of_windows(operator.schema().fieldNames()):
            raise ConfigError(
                f"drain=True fires the last windows of {name!r} and closes its checkpoint, and would lose those of the windowed "
                "stream that it reads; give both bolts to one topology, whose drain reaches all (submit), or let this query read "
                "what a query of the first bolt has written"
            )


def takes_acks(source: Any) -> bool:
    """Return whether a source takes acks."""
    return isinstance(source, PartitionedSpout) and source.takes_acks


# -- The common arguments --------------------------------------------------------------------------------------------------------


def names_of(option: str, given: Any, what: str) -> tuple[str, ...]:
    """Return names given as one text or as several. Raises ConfigError for anything else.

    >>> names_of("order_by", "at", "columns"), names_of("order_by", ["at", "id"], "columns")
    (('at',), ('at', 'id'))
    >>> names_of("order_by", 5, "columns")
    Traceback (most recent call last):
    windowing.errors.ConfigError: [CONFIG] order_by names columns, as a text or a list of texts, got 5; write order_by=("name",)
    """
    several = (given,) if isinstance(given, str) else given
    if isinstance(several, Iterable) and not isinstance(several, bytes | Mapping | Column):
        names = tuple(several)
        if all(isinstance(name, str) for name in names):
            return names
    raise ConfigError(
        f'{option} names {what}, as a text or a list of texts, got {quote(given)}; write {option}=("name",)'
    )


def require_start(checkpoint: Any, query_name: Any) -> str:
    """Return the path of the checkpoint. Raises ConfigError for an invalid path, or an invalid query name."""
    path = checked_folder("checkpoint", checkpoint)
    if query_name is not None and (not isinstance(query_name, str) or not query_name):
        raise ConfigError(f'query_name is a text, got {quote(query_name)}; write query_name="delays"')
    return path


def require_mapping(option: str, given: Any) -> None:
    """Raise ConfigError unless `given` is a mapping by name."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{option} is a mapping by name, got {quote(given)}; write {option}={{'name': ...}}")


def require_carried(what: str, schema: StructType) -> None:
    """Raise ConfigError for a column of a type whose values Spark cannot transfer to Python code and back."""
    for field in schema.fields:
        if not _is_transferable(field.dataType):
            kind = field.dataType.simpleString()
            shape = kind.startswith(("geometry", "geography"))
            cast_to = f"F.expr('st_asbinary(`{field.name}`)')" if shape else f"F.col({field.name!r}).cast('string')"
            raise ConfigError(
                f"column {quote(field.name)} of {what} is {kind}, which does not travel between Spark and Python; cast it to "
                f"{'binary' if shape else 'a number or a text'}, or drop it: .withColumn({field.name!r}, {cast_to})"
            )


def _is_transferable(kind: DataType) -> bool:
    if type(kind).__name__ in _REFUSED:
        return False
    parts = [getattr(kind, part) for part in ("elementType", "keyType", "valueType") if hasattr(kind, part)]
    parts += [field.dataType for field in getattr(kind, "fields", ())]
    if parts:
        return all(map(_is_transferable, parts))
    try:
        arrow_type_in_spark(kind)
    except Exception:  # PySpark raises several classes
        return False
    return True
