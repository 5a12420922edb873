"""Sources: what a stream of a topology is fed from on Spark, brought to the columns that the stream declares."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from windowing.errors import ConfigError, shown
from windowing.spark.spouts import PartitionedSpout
from windowing.topology.schema import Schema

__all__ = ["Source", "selected", "told"]

Source = DataFrame | PartitionedSpout
"""A streaming DataFrame, or a source of rows in Python."""


def selected(what: str, schema: Schema, source: Source, spark: SparkSession, name: str) -> DataFrame:
    """Return the declared columns of the rows of a source. `what`: how errors call the stream; `name`: how Spark's log does.

    Raises ConfigError for what is no streaming DataFrame, and for a column that is missing or of another type.
    """
    rows = source.stream(spark, name) if isinstance(source, PartitionedSpout) else source
    if not isinstance(rows, DataFrame) or not rows.isStreaming:
        raise ConfigError(
            f"the source of {what} is a streaming DataFrame or a PartitionedSpout, got {shown(rows)}; read it with spark.readStream"
        )
    wanted = StructType.fromDDL(schema.ddl)
    assert isinstance(wanted, StructType)
    types = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    for field in wanted.fields:
        kind = types.get(field.name)
        if kind != field.dataType.simpleString():
            given = "no such column" if kind is None else f"it as {kind}"
            raise ConfigError(
                f"the source of {what} declares {field.name!r} as {field.dataType.simpleString()}, the DataFrame has {given}; "
                "bring it there with select, withColumn or cast"
            )
    return rows.select(*[F.col(f"`{name}`") for name in schema.names])


def told(packed: DataFrame) -> DataFrame:
    """Return control rows (control.py) as rows of the wire: every place is told, whatever its level."""
    return packed.select(
        F.col("label").alias("target"),
        "kind",
        "stream",
        F.col("partition").alias("sender"),
        "sequence",
        "now",
        "source",
        "value",
        "data",
    )
