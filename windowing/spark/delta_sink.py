"""DeltaSink: writes a stream to a Delta table, each batch once. Imported on first use; needs Delta in the session.

    rows of batch 7 --append, txnAppId "windowing <query> <stream>", txnVersion 7--> one commit of the table's log

The log stores the last version of each application, and Delta skips a commit with a version that it has. So a repeated batch is in
the table once, whichever process wrote it first, and several queries may write to one table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.types import StructType

from windowing.errors import ConfigError, SinkError, WindowingError, describe_error, quote
from windowing.schema.checks import did_you_mean, spelled
from windowing.spark.hadoop import (
    Folder,
    checked_folder,
    java_causes,
    literal_path,
    masked_paths,
    refused_by_files,
    unreachable,
)
from windowing.spark.sinks import (
    OLDER_COPY,
    OWNER_FILE,
    FolderSink,
    OutputOwner,
    different_columns,
    gone,
    log_new,
    required_owner,
)

_SETTINGS = (
    "spark.jars.packages=io.delta:delta-spark_<4.1 or 4.2>_2.13:4.4.0, "
    "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension and "
    "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog"
)
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*){0,2}\Z", re.ASCII)
_UNCONFIGURED = ("DELTA_CONFIGURE_SPARK_SESSION", "DELTA_SPARK_SESSION_NOT_SET")
_LOG = "_delta_log"
_OVERTAKEN = "ConcurrentTransactionException"
_OF_DELTA = re.compile(rf"{_OVERTAKEN}|DELTA_(?:VIOLATE_CONSTRAINT|NOT_NULL_CONSTRAINT|EXCEED_CHAR_VARCHAR)")
"""What Delta refuses while it writes: another writer of the query, a row that the table does not take."""


class DeltaSink(FolderSink):
    """A Delta table that takes the rows of one stream of one query, each batch exactly once; rows are appended.

    path: the folder of the table; or table: its name in the catalog, `flights` or `main.air.flights`. A table that does not exist
    is created with the columns of the stream, partitioned by partition_by; an existing one is checked before the first batch: it
    must have the stream's columns, with their types, and the partitions of partition_by, if that is given. Cost: a job for each
    batch with rows, and a commit of the table.

    The session must have Delta. Do not set `delta.setTransactionRetentionDuration` below the longest pause of the query: a batch
    that is repeated after Delta has deleted its version would be in the table twice.

    >>> DeltaSink("/data/flights", partition_by="day")
    DeltaSink('/data/flights', partition_by=('day',))
    >>> DeltaSink(table="main.air.flights")
    DeltaSink(table='main.air.flights')
    """

    _is_shared = True

    @spelled
    def __init__(
        self, path: str | None = None, *, table: str | None = None, partition_by: str | Sequence[str] = ()
    ) -> None:
        if (path is None) == (table is None):
            raise ConfigError(
                "a DeltaSink writes to a folder or to a table of the catalog; give DeltaSink(path), or DeltaSink(table=name)"
            )
        if table is not None and not (isinstance(table, str) and _NAME.match(table)):
            raise ConfigError(
                f"table= is the name of a table, of letters, digits and _, got {quote(table)}; give main.air.flights, for one"
            )
        self.path = None if path is None else checked_folder("path", path)
        self._table = table
        self.partition_by = different_columns("partition_by= of a DeltaSink", partition_by)
        self._owner: OutputOwner | None = None

    def __repr__(self) -> str:
        where = f"table={self._table!r}" if self.path is None else repr(masked_paths(self.path))
        by = f", partition_by={self.partition_by}" if self.partition_by else ""
        return f"{type(self).__name__}({where}{by})"

    def claim(self, spark: SparkSession, owner: OutputOwner) -> int:
        """Create the table, or check an existing one; return the last batch in it, -1 for none.

        Raises ConfigError for a session without Delta, a folder with other files, a table that lacks columns, and one that is ahead
        of the checkpoint; SinkError if it cannot be reached.
        """
        unknown = [name for name in self.partition_by if name not in owner.schema.names]
        if unknown:
            raise ConfigError(
                f"partition_by= of {self!r} names {quote(unknown[0])}; {did_you_mean(str(unknown[0]), owner.schema.names)}"
            )
        jvm: Any = spark._jvm
        written = -1
        if not _is_class(jvm.io.delta.tables.DeltaTable):
            raise ConfigError(f"{self!r}: the session has no Delta; start it with {_SETTINGS}")
        try:
            if self._is_there(spark):
                self._require_delta(spark)
                self._require_fitting(spark, owner.schema)
                location, partitions = self._detail(spark)
                self._require_partitions(partitions)
                written = self._written(spark, owner, location)
                owner.require_in_step(repr(self), written, f"{OLDER_COPY}, or start with a new checkpoint")
            else:
                if self.path is not None:
                    log_new(self._folder(spark), owner)
                self._save(spark.createDataFrame([], owner.schema).write)
        except WindowingError:
            raise
        except Exception as problem:  # of Spark or py4j
            if any(name in str(problem) for name in _UNCONFIGURED):
                raise ConfigError(
                    f"{self!r}: the session is not set up for Delta; start it with {_SETTINGS}"
                ) from problem
            raise self._refused(problem, "cannot be used") from problem
        self._owner = owner
        return written

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Append the batch, unless the table already holds it. Raises SinkError, also if the folder of the table is gone."""
        owner, spark = required_owner(self, self._owner), rows.sparkSession
        if self.path is not None and not self._folder(spark).exists(_LOG):
            raise gone(self._folder(spark), owner._replace(last_batch=batch_id))
        once = {"txnAppId": _application(owner), "txnVersion": str(batch_id)}
        try:
            self._save(rows.write.options(**once))
        except Exception as problem:
            ours = isinstance(problem, AnalysisException) or refused_by_files(problem) or _OF_DELTA.search(str(problem))
            if not ours:
                raise
            raise self._refused(problem, f"does not take batch {batch_id}") from problem

    def _save(self, writer: DataFrameWriter) -> None:
        appending = writer.format("delta").mode("append")
        if self.partition_by:
            appending = appending.partitionBy(*self.partition_by)
        if self.path is None:
            appending.saveAsTable(str(self._table))
        else:
            appending.save(self.path)

    def _file_in(self, folder: Folder) -> str:
        names = (folder / _LOG).names()
        return f"{_LOG}/{next((name for name in reversed(names) if name.endswith('.json')), names[-1])}"

    def _is_there(self, spark: SparkSession) -> bool:
        if self.path is None:
            return spark.catalog.tableExists(str(self._table))
        folder, jvm = self._folder(spark), cast(Any, spark._jvm)
        if jvm.io.delta.tables.DeltaTable.isDeltaTable(spark._jsparkSession, folder.path):
            return True
        names = folder.names()
        # An interrupted creation has left the folder of the log; a checkpoint can be in a hidden folder of the table.
        held = [name for name in names if name == OWNER_FILE or not name.startswith(("_", "."))]
        if held and _LOG not in names:
            raise ConfigError(
                f"{self!r} is no Delta table: it holds {quote(held[0])} and has no {_LOG}; give a new folder, or CONVERT TO DELTA"
            )
        return False

    def _require_delta(self, spark: SparkSession) -> None:
        """Raise ConfigError for a table of the catalog that is a view, or is stored in another format."""
        if self.path is not None:
            return
        described = {
            row["col_name"]: row["data_type"] for row in spark.sql(f"DESCRIBE EXTENDED {self._table}").collect()
        }
        kind, provider = str(described.get("Type", "")), str(described.get("Provider", ""))
        if "VIEW" in kind.upper() or provider.lower() != "delta":
            what = kind.lower() if "VIEW" in kind.upper() else f"stored as {provider or 'something else'}"
            raise ConfigError(
                f"{self!r} is no Delta table, it is {what}; give the name of one, or of a table that is not there yet"
            )

    def _rows(self, spark: SparkSession) -> DataFrame:
        if self.path is None:
            return spark.table(str(self._table))
        return spark.read.format("delta").load(literal_path(self.path))

    def _require_fitting(self, spark: SparkSession, schema: StructType) -> None:
        fields = self._rows(spark).schema.fields
        there = {field.name.lower(): field.dataType for field in fields}
        for field in schema.fields:
            kind = there.get(field.name.lower())
            if kind is None:
                raise ConfigError(
                    f"{self!r} has no column {quote(field.name)}; ALTER TABLE ... ADD COLUMN {field.name} "
                    f"{field.dataType.simpleString()}, or write to another table"
                )
            if kind != field.dataType:
                raise ConfigError(
                    f"column {quote(field.name)} of {self!r} is {kind.simpleString()}, that of the stream is "
                    f"{field.dataType.simpleString()}; declare the output so, drop a NOT NULL inside, or write to another table"
                )
        ours = {name.lower() for name in schema.names}
        for field in fields:
            if not field.nullable and field.name.lower() not in ours:
                raise ConfigError(
                    f"column {quote(field.name)} of {self!r} has to have a value, and the stream has no such column; ALTER TABLE "
                    f"... ALTER COLUMN {field.name} DROP NOT NULL, or write to another table"
                )

    def _detail(self, spark: SparkSession) -> tuple[str, list[str]]:
        """Return the folder of the table, and the columns by which it is partitioned."""
        jvm: Any = spark._jvm
        tables, session = jvm.io.delta.tables.DeltaTable, spark._jsparkSession
        found = tables.forName(session, self._table) if self.path is None else tables.forPath(session, self.path)
        row = DataFrame(found.detail(), spark).select("location", "partitionColumns").collect()[0]
        return str(row[0]), list(row[1])

    def _require_partitions(self, there: list[str]) -> None:
        """Raise ConfigError for other partitions than those that were asked for; Delta would refuse the first batch."""
        if self.partition_by and [name.lower() for name in there] != [name.lower() for name in self.partition_by]:
            is_by = f"is partitioned by {', '.join(map(quote, there))}" if there else "has no partitions"
            raise ConfigError(
                f"{self!r} is there and {is_by}, which appended rows cannot change; leave out partition_by=, or write to another "
                "table"
            )

    def _written(self, spark: SparkSession, owner: OutputOwner, location: str) -> int:
        """Return the last batch of the owner in the table, -1 for none."""
        jvm: Any = spark._jvm
        logs = jvm.org.apache.spark.sql.delta.DeltaLog
        if not _is_class(logs):  # a platform's own Delta may not have this class
            return -1
        snapshot = logs.forTableWithSnapshot(spark._jsparkSession, location)._2()
        version = snapshot.transactions().get(_application(owner))
        return int(version.get()) if version.isDefined() else -1

    def _refused(self, problem: BaseException, what: str) -> SinkError:
        if _OVERTAKEN in str(problem):
            return SinkError(
                f"{self!r} {what}: another process writes for the same query; one at a time can have a checkpoint"
            )
        if refused_by_files(problem):
            return SinkError(unreachable(self.path or f"the table {self._table}", problem))
        causes = java_causes(problem)
        of_delta = (cause for cause in causes if _OF_DELTA.search(cause))
        said = next(of_delta, causes[0] if causes else describe_error(problem)).partition("\n")[0]
        return SinkError(
            f"{self!r} {what}: {quote(masked_paths(said)[:500])}; mend the table and start again: nothing of the batch is in it"
        )


def _is_class(found: Any) -> bool:
    """Return whether a JVM name is a class; py4j returns a package for every other name."""
    return type(found).__name__ == "JavaClass"


def _application(owner: OutputOwner) -> str:
    return f"windowing {owner.query} {owner.stream}"
