"""windowed(): applies a windowed bolt to a streaming DataFrame.

    input streams --select, task--> mapInArrow (exchange.py) --+
    control files, ticks (control.py) ---------------------+--> groupBy(label) --> transformWithState (operator.py, window_turn.py)
                                                                                       |
                                           the streams (output.py) <------------------------+

`start` runs it as ONE query with one sink per stream, the stateful part evaluated once (running.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

from pyspark.sql import DataFrame
from pyspark.sql.types import DateType, NumericType, StringType, StructType, TimestampNTZType, TimestampType

from windowing.errors import ConfigError, SessionError, quote
from windowing.execution.compatibility import Definition, of_bolt
from windowing.execution.plan import plan_of_bolt
from windowing.execution.support import Runtime, announce_bolt
from windowing.schema.checks import DEFAULT_STREAM, StormNames, did_you_mean, spelled
from windowing.spark.assembly import Assembly, names_of, require_carried, require_start
from windowing.spark.checkpoint import Checkpoint
from windowing.spark.control import checked_tasks
from windowing.spark.exchange import WindowTimestamps, task_column, with_max_future
from windowing.spark.hadoop import checked_folder
from windowing.spark.metrics import MetricsChannel
from windowing.spark.operator import packed
from windowing.spark.output import Encoder, Layout, quoted
from windowing.spark.rows import NamedRows
from windowing.spark.running import WindowedQuery
from windowing.spark.session import is_connect, parallelism, require_open, require_readable_zone, require_session
from windowing.spark.shipping import Shipped
from windowing.spark.sinks import Sink, require_sinks, require_unread
from windowing.spark.spouts import require_evaluable, struct_of
from windowing.spark.state import SEQUENCE, TIMESTAMP
from windowing.spark.window_turn import Packer, TaskStage, window_turn
from windowing.spark.writer import BatchWriter
from windowing.spark.written_columns import nullable
from windowing.topology.bolts import WindowedBolt
from windowing.topology.components import TopologyContext
from windowing.topology.dead_letters import DEAD_LETTER_FIELDS, DEAD_LETTERS
from windowing.topology.decorators import bolt_of
from windowing.topology.rules import REASON, fields_named, nested, no_id
from windowing.windows.config import OnError, WindowConfig
from windowing.windows.measures import Duration

_log = logging.getLogger("windowing.spark")
InputFrames = DataFrame | Mapping[str, DataFrame]
_NO_START = (
    "start() reads and writes its checkpoint through the driver's JVM, which a session of Spark Connect hides; use "
    "windowing.spark.session() where the driver is, or write the DataFrames of .streams with Spark's own sinks: "
    "stream['default'].writeStream"
)
_TIMES = (NumericType, DateType, TimestampType, TimestampNTZType)  # what `timestamps_of` of exchange.py reads


@spelled
def windowed(
    bolt: Any,
    source: InputFrames,
    *,
    tasks: int | None = None,
    grouping: str | Sequence[str] | None = None,
    order_by: str | Sequence[str] | None = None,
    control: str | None = None,
) -> WindowedStream:
    """Apply a windowed bolt to a streaming DataFrame, or to several: a mapping of input stream names to DataFrames.

    grouping: the task of a row: "global" (one task gets all rows), "shuffle" (evenly, by a hash of the whole row) or columns (equal
        values go to the same task). Default: the bolt's key=, or "global" for a bolt without a key.
    tasks: the number of tasks, fixed for the life of a checkpoint. Default: that of the checkpoint; for a new one, one per core
        (one for "global").
    order_by: the columns that define the order of arrival in a batch. Default: (stream, partition, position), which a replay with
        another number of cores does not repeat.
    control: the folder of control files for the DataFrames of `streams`; `start` has its own.

    On Spark Connect only `streams` works, not `start`. Raises ConfigError or SessionError before any data is read.

        stream = windowed(bolt, df, order_by="id")
        query = stream.start({"default": ParquetSink("out"), "late": ParquetSink("late")}, checkpoint="checkpoint")
        query.await_end()
    """
    declared = bolt_of(bolt)
    inputs = _inputs(source)
    rows = next(iter(inputs.values()))
    require_session(rows.sparkSession, connect=True)
    chosen = _grouping(declared.config, grouping)
    order = names_of("order_by", () if order_by is None else order_by, "columns")
    if control is not None:
        checked_folder("control", control)
    _require_columns(declared, rows.columns, chosen, order)
    _require_types(declared, rows.schema, order)
    announce_bolt(Runtime.WINDOWED, _log.warning, declared)
    return WindowedStream(declared, inputs, _tasks(tasks, chosen, grouping), chosen, order, control)


_OF_A_FRAME = (
    "select",
    "filter",
    "where",
    "withColumn",
    "groupBy",
    "join",
    "drop",
    "selectExpr",
    "printSchema",
    "schema",
    "show",
)


class WindowedStream(StormNames):
    """A bolt applied to its input; made by `windowed`. `streams` are DataFrames; `start` runs everything as one query."""

    _elsewhere: ClassVar[Mapping[str, str]] = {
        "writeStream write": 'start({"default": ParquetSink("out")}, checkpoint="checkpoint")',
        "foreachBatch": 'start({"default": FunctionSink(f)}, checkpoint="checkpoint")',
        "trigger": 'start(..., trigger=seconds(10)), or trigger="available_now"',
        "option options queryName": 'start(..., query_name="delays"), or arguments of the sink',
        "outputMode": "nothing: each row of a window is appended once",
        "withWatermark": "timestamp= and lag= of the bolt: @tumbling(length, timestamp=..., lag=...)",
        "format toTable save": 'a sink: start({"default": ParquetSink("out")}, ...)',
        "collect toPandas": 'sink = MemorySink(), start({"default": sink}, ...), then sink.rows',
        **{name: f'streams["default"].{name}, a DataFrame' for name in _OF_A_FRAME},
    }

    def __init__(
        self,
        bolt: WindowedBolt,
        inputs: Mapping[str, DataFrame],
        tasks: int | None,
        grouping: str | tuple[str, ...],
        order_by: tuple[str, ...],
        control: str | None,
    ) -> None:
        self.bolt, self.grouping, self.order_by = bolt, grouping, order_by
        self._asked_tasks = tasks
        self._inputs = inputs
        self._control = control
        self._rows = next(iter(inputs.values()))
        self._spark = self._rows.sparkSession
        self.schemas: dict[str, StructType] = _schemas(bolt, self._rows.schema)
        self._layout = Layout(self.schemas)
        self._assemblies: dict[int, Assembly] = {}

    def __repr__(self) -> str:
        inputs, by = ", ".join(self._inputs), quote(self.grouping)
        return f"WindowedStream({self.bolt.name!r} over {inputs} by {by}, streams: {', '.join(self.schemas) or 'none'})"

    @cached_property
    def tasks(self) -> int:
        """The number of tasks. If none was given, `start` on an existing checkpoint uses the checkpoint's number."""
        if self._asked_tasks is not None:
            return self._asked_tasks
        require_open(self._spark)
        return parallelism(self._spark)

    @property
    def streams(self) -> dict[str, DataFrame]:
        """The declared streams and the late stream, as streaming DataFrames of their schemas.

        Two queries on two of them evaluate the bolt twice, each with its own checkpoint; `start` evaluates it once. A drain needs
        `control=`. Run the queries with spark.sql.shuffle.partitions = tasks.
        """
        require_open(self._spark)
        require_readable_zone(self._spark)
        output = self._assembly(self.tasks).rows(self._control)
        return {name: self._layout.rows(output, name) for name in self.schemas}

    def __getitem__(self, stream: str) -> DataFrame:
        if stream not in self.schemas:
            raise ConfigError(self._no_stream(stream))
        return self.streams[stream]

    def __iter__(self) -> Iterator[str]:
        return iter(self.schemas)

    @spelled
    def start(
        self,
        sinks: Mapping[str, Sink] | Sink,
        checkpoint: str,
        *,
        trigger: Literal["available_now"] | Duration | timedelta = "available_now",
        drain: bool = False,
        discard: str | Sequence[str] = (),
        query_name: str | None = None,
    ) -> WindowedQuery:
        """Start ONE query: each stream is written to its sink, and the bolt is evaluated once per batch.

        sinks: a sink for each stream, or one sink for the default stream. Every declared stream needs a sink or must be named in
        `discard`; late tuples without a sink are counted and logged. trigger: "available_now" (ends with the input) or an interval.
        drain=True: at the end of the input the last windows fire, and the checkpoint is closed for good.

        Raises ConfigError, SessionError, DefinitionChangedError, DrainedCheckpointError or CheckpointError before the first batch.
        """
        path = require_start(checkpoint, query_name)
        if is_connect(self._spark):
            raise SessionError(_NO_START)
        require_session(self._spark)
        for name, rows in self._inputs.items():
            require_evaluable(f"input stream {name!r}", rows)
        left_out = names_of("discard", discard, "streams")
        known, late = self._sinks(sinks, left_out), self.bolt.config.late_stream
        home = Checkpoint(self._spark, path)
        require_unread(home, self._inputs.values())
        tasks = self._asked_tasks or home.stored_tasks() or self.tasks
        return self._assembly(tasks).start(
            home,
            self._definition(tasks),
            BatchWriter(self.bolt.name, self._layout, known, late is None or not (late in known or late in left_out)),
            MetricsChannel(self._spark, self.bolt.name, [self.bolt]),
            trigger=trigger,
            drain=drain,
            query_name=query_name,
        )

    def _assembly(self, tasks: int) -> Assembly:
        """Return the query of the bolt with this number of tasks; it is made once, so the code is sent once."""
        if tasks not in self._assemblies:
            plan, shipped = plan_of_bolt(self.bolt, tasks, self.grouping, self._inputs), self._stage(tasks)
            self._assemblies[tasks] = Assembly(
                spark=self._spark,
                plan=plan,
                partitions=tasks,
                inputs=self._inputs.values(),
                windows=(self.bolt.config,),
                sources=lambda clock: list(self._packed(tasks, clock)),
                turn=partial(window_turn, shipped, Encoder(self.bolt.name, self._layout)),
                schema=self._layout.schema,
            )
        return self._assemblies[tasks]

    def _packed(self, tasks: int, clock: str) -> Iterator[DataFrame]:
        """Yield the rows of each input stream, packed for the tasks."""
        stamps = WindowTimestamps.of_windows(self.bolt.name, with_max_future(self.bolt.config))
        for name, rows in self._inputs.items():
            packer = Packer(name, tuple(rows.columns), tasks, stamps)
            yield packed(rows, packer, task_column(rows, self.grouping, tasks), clock, bool(self.order_by))

    def _stage(self, tasks: int) -> Shipped[TaskStage]:
        """Return the stage in the form that is sent to workers, with the default of `max_future=`."""
        config, what = self.bolt.config, f"bolt {self.bolt.name!r}"
        columns, streams = tuple(self._rows.columns), tuple(self._inputs)
        stage = TaskStage(
            bolt=replace(self.bolt, config=with_max_future(config)),
            format=NamedRows(columns, streams, self.order_by, config.message_id is not None),
            streams=streams,
            context=TopologyContext(self.bolt.name, tasks=tasks),
        )
        return Shipped(self._spark, stage, what, {what: self.bolt})

    def _sinks(self, sinks: Mapping[str, Sink] | Sink, discard: Sequence[str]) -> dict[str, Sink]:
        bolt, given = self.bolt, sinks if isinstance(sinks, Mapping) else {DEFAULT_STREAM: sinks}
        return require_sinks(
            {name: schema.names for name, schema in self.schemas.items()},
            [name for name in self.schemas if name != bolt.config.late_stream],
            given,
            discard,
            unknown=self._no_stream,
            without=lambda name: f"stream {name!r} of bolt {bolt.name!r} has no sink",
        )

    def _definition(self, tasks: int) -> Definition:
        """Return the definition of the bolt. Its state is one more variable in Spark's store, and cannot be added later."""
        found = self.bolt.definition()
        stateful = {"fixed": {**found["fixed"], "stateful": True}} if self.bolt.stateful else {}
        columns = {
            name: [[field.name, field.dataType.simpleString(), field.nullable] for field in rows.schema.fields]
            for name, rows in self._inputs.items()
        }
        return of_bolt(found | stateful, tasks, self.grouping, self.order_by, columns)

    def _no_stream(self, name: str) -> str:
        has = ", ".join(self.schemas) or "none: it declares no output"
        more = "" if self.bolt.config.late_stream else "; late_stream= adds one for late rows"
        return f"bolt {self.bolt.name!r} has no stream {quote(name)}; it has {has}{more}"


def _inputs(source: InputFrames) -> dict[str, DataFrame]:
    """Return the input streams by name, sorted, all with the columns of the first in its order."""
    given = dict(source) if isinstance(source, Mapping) else {DEFAULT_STREAM: source}
    if not given:
        raise ConfigError("windowed() needs an input, got an empty mapping; give a streaming DataFrame")
    for name, rows in given.items():
        if not isinstance(name, str) or not name:
            raise ConfigError(f"an input stream is called by a text, got {quote(name)}")
        if not isinstance(rows, DataFrame):
            kind, module = type(rows).__qualname__, type(rows).__module__
            what = "" if rows is None else f"a {kind}: " if module == "builtins" else f"a {kind} of {module}: "
            raise ConfigError(
                f"input stream {name!r} is a streaming DataFrame of Spark, got {what}{quote(rows)}; read one with "
                "spark.readStream, or try the bolt on rows with run_local(bolt, [rows])"
            )
        require_open(rows.sparkSession)
        if not rows.isStreaming:
            raise ConfigError(f"input stream {name!r} is a batch DataFrame; read it with spark.readStream")
        if not rows.columns:
            raise ConfigError(f"input stream {name!r} has no columns, so its rows cannot be sent; select one at least")
        if len({column.lower() for column in rows.columns}) < len(rows.columns):
            raise ConfigError(
                f"input stream {name!r} has two columns of one name: {', '.join(rows.columns)}; rename one"
            )
    first, *_ = names = sorted(given)
    require_carried(f"input stream {first!r}", given[first].schema)
    wanted = {field.name: field.dataType for field in given[first].schema.fields}
    own = [column for column in wanted if column.lower() in (TIMESTAMP, SEQUENCE)]
    if own:
        raise ConfigError(f"input column {own[0]!r} has a name that windowing uses itself; rename it before windowed()")
    for name in names[1:]:
        _require_same(first, wanted, name, {field.name: field.dataType for field in given[name].schema.fields})
    columns = list(map(quoted, wanted))
    return {name: given[name] if name == first else given[name].select(*columns) for name in names}


def _require_same(first: str, wanted: Mapping[str, Any], name: str, found: Mapping[str, Any]) -> None:
    for column in [*wanted, *found]:
        if wanted.get(column) != found.get(column):
            kind = _kind(wanted.get(column))
            if kind == _kind(found.get(column)):  # which does not show it
                raise ConfigError(
                    f"input streams need the same columns: {column!r} is {kind} in streams {first!r} and {name!r}, but what is "
                    f"inside it is never null in one of them; cast it to {kind} in both"
                )
            raise ConfigError(
                f"input streams need the same columns: {column!r} is {kind} in stream {first!r} and "
                f"{_kind(found.get(column))} in stream {name!r}; bring them together with select, withColumn or cast"
            )


def _kind(kind: Any) -> str:
    return "missing" if kind is None else str(kind.simpleString())


def _grouping(config: WindowConfig, grouping: str | Sequence[str] | None) -> str | tuple[str, ...]:
    if grouping is None:
        return config.key if config.key is not None else "global"
    names = names_of("grouping", grouping, '"global", "shuffle" or columns')
    if not names:
        raise ConfigError('grouping is "global", "shuffle" or columns, got nothing; leave it out for the default')
    if grouping == "global":
        return "global"
    near = did_you_mean(grouping, ("global", "shuffle")) if isinstance(grouping, str) and grouping != "shuffle" else ""
    if config.key is not None and near.startswith("did") and grouping not in config.key:
        raise ConfigError(f'grouping is "global", "shuffle" or columns, got {quote(grouping)}; {near}')
    if config.key is not None and (grouping == "shuffle" or not set(names) <= set(config.key)):
        raise ConfigError(
            f"grouping={quote(grouping)} would spread the rows of one key= {config.key!r} over several tasks, or "
            "group by other columns; leave grouping out, or group by columns of the key"
        )
    return "shuffle" if grouping == "shuffle" else names


def _tasks(tasks: int | None, grouping: str | tuple[str, ...], asked: Any) -> int | None:
    tasks = None if tasks is None else checked_tasks(tasks)
    if grouping == "global":
        if tasks not in (None, 1):
            wish = "grouping is 'global'" if asked is not None else "the bolt has no key= and no grouping was given"
            raise ConfigError(
                f'tasks={tasks}, but {wish}: one task sees all rows; give grouping=("column",) or "shuffle", or drop tasks'
            )
        return 1
    return tasks


def _require_columns(
    bolt: WindowedBolt, columns: list[str], grouping: str | tuple[str, ...], order: tuple[str, ...]
) -> None:
    config = bolt.config
    grouped = grouping if isinstance(grouping, tuple) else ()
    for option, name in (
        *fields_named(config),
        *(("grouping", name) for name in grouped),
        *(("order_by", name) for name in order),
    ):
        if name not in columns:
            column, _, field = name.rpartition(".")
            near = did_you_mean(name, columns)
            way_out = f"; write .withColumn({field!r}, F.col({name!r})) in front, and name {field!r}"
            raise ConfigError(
                f"{option} of bolt {bolt.name!r} names column {quote(name)}, the input has {', '.join(columns)}"
                + (way_out if column.partition(".")[0] in columns else f"; {near}" if near.startswith("did") else "")
            )
    taken = [column for column in columns if column.lower() == REASON]
    if config.late_stream is not None and taken:
        raise ConfigError(
            f"the late stream adds a column {REASON!r}, and the input has one called {taken[0]!r}; rename it"
        )


def _require_types(bolt: WindowedBolt, rows: StructType, order: tuple[str, ...]) -> None:
    """Refuse columns whose types cannot be what the bolt uses them for."""
    config = bolt.config
    source = () if config.source is None else (config.source,)
    for option, names in (("source", source), ("key", config.key or ()), ("order_by", order)):
        for name in names:
            problem = nested(option, f"bolt {bolt.name!r}", name, rows[name].dataType.simpleString())
            if problem is not None:
                raise ConfigError(problem)
    identity = config.message_id
    if identity is not None:
        problem = no_id(f"bolt {bolt.name!r}", identity, rows[identity].dataType.simpleString())
        if problem is not None:
            raise ConfigError(problem)
    at = config.timestamp
    if isinstance(at, str) and not isinstance(rows[at].dataType, _TIMES):  # every row would be invalid
        raise ConfigError(
            f"timestamp of bolt {bolt.name!r} names column {at!r}, which is {rows[at].dataType.simpleString()}, a type that "
            f"holds no timestamps; cast it to timestamp or to long (milliseconds), for example .withColumn({at!r}, "
            f"F.to_timestamp({at!r})), or give a function of the row"
        )
    for field in rows.fields if config.late_stream is not None else ():  # Spark cannot write their values back
        if '"type":"udt"' in field.dataType.json():
            raise ConfigError(
                f"column {field.name!r} of the input has a user-defined type, {type(field.dataType).__name__}, whose values cannot"
                f" be written to the late stream of bolt {bolt.name!r}; convert it before windowed(), for example with "
                "pyspark.ml.functions.vector_to_array, drop it, or leave out late_stream="
            )


def _schemas(bolt: WindowedBolt, rows: StructType) -> dict[str, StructType]:
    schemas = {name: struct_of(schema.ddl) for name, schema in bolt.outputs.items()}
    if bolt.config.late_stream is not None:
        schemas[bolt.config.late_stream] = nullable(StructType.fromJson(rows.jsonValue())).add(REASON, StringType())
    if bolt.config.on_error is OnError.DEAD_LETTER:
        schemas[DEAD_LETTERS] = struct_of(DEAD_LETTER_FIELDS.ddl)
    if len({name.lower() for name in schemas}) < len(schemas):
        raise ConfigError(f"bolt {bolt.name!r} has two streams of one name: {', '.join(schemas)}; rename one")
    return schemas
