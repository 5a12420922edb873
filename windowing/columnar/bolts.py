"""Bolts over batches: `@bolt(columnar="arrow" | "pandas")`, which get rows of a stream as one table and return tables.

    rows of one input stream --table_of--> pyarrow.Table, or a DataFrame --the bolt--> None, a batch, or {stream: batch}
                                                                                             |
                                the driver's form <--fit-- one table for each stream ------+

A batch has the fields of its stream, in their order and of their declared types (`arrow_schema`). A DataFrame has pandas' nullable
types (Int64, Float64, boolean, string; for all others ArrowDtype), so that whole numbers stay whole beside a null. A bolt may
return a pyarrow.Table, a RecordBatch or a DataFrame, whichever it got; its columns are the fields of the stream to which it is
sent, in any order.

Laws: a batch holds rows of one stream, in arrival order, at least one; the driver chooses how many. The output of a bolt on a batch
belongs to all of its rows: they are acked, fail and are retried together. So a driver with acks puts no two rows of different trees
into one batch: in LocalCluster a tracked tuple is a batch of its own, on Spark the rows of a batch have the same roots. Each value
is checked as a value of a row would be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from windowing.columnar.rows import UNFIT, is_changed
from windowing.errors import ConfigError, FailedException, describe_error, quote
from windowing.schema.checks import DEFAULT_STREAM
from windowing.schema.rows import RowError, refuse_awaitable, refuse_rows
from windowing.schema.types import FieldType, Schema
from windowing.topology.bolts import Declaration
from windowing.topology.user_code import BoltCaller, home_of, user_code_error

Fit = Callable[[pa.Table, Schema, str], Any]
"""Converts a table of a stream with these fields to the driver's form, or raises RowError."""


# -- the Arrow types of declared fields ------------------------------------------------------------------------------------------


_SIMPLE = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "binary": pa.binary(),
}


@lru_cache(maxsize=256)
def arrow_schema(schema: Schema) -> pa.Schema:
    """Return the Arrow schema of a stream's fields, equal to Spark's (a test compares the two); each field is nullable. It is kept,
    because Trident on Spark asks for it with each packet of rows.

    >>> arrow_schema(Schema.parse("word string, n long")).types
    [DataType(string), DataType(int64)]
    """
    named = zip(schema.names, schema.types, strict=True)
    return pa.schema([pa.field(name, arrow_type(FieldType.parse(kind))) for name, kind in named])


def arrow_type(kind: FieldType) -> pa.DataType:
    """Return the Arrow type of a field."""
    inner = [arrow_type(each) for each in kind.inner]
    match kind.kind:
        case "decimal":
            return pa.decimal128(*kind.digits)
        case "array":
            return pa.list_(pa.field("element", inner[0]))
        case "map":
            return pa.map_(*inner)
        case "struct":
            return pa.struct([pa.field(name, each) for name, each in zip(kind.names, inner, strict=True)])
    return _SIMPLE[kind.kind]


def table_of(rows: Sequence[tuple[Any, ...]], schema: Schema) -> pa.Table:
    """Return rows, whose values have their declared types, as a table.

    >>> table_of([("cow", 1), (None, 2)], Schema.parse("word string, n long")).to_pylist()
    [{'word': 'cow', 'n': 1}, {'word': None, 'n': 2}]
    """
    fields = arrow_schema(schema)
    columns = zip(*rows, strict=True) if rows else ((),) * len(fields)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, fields, strict=True)]
    return pa.Table.from_arrays(arrays, schema=fields)


# -- the call --------------------------------------------------------------------------------------------------------------------


class ColumnarCaller(BoltCaller):
    """One task's instance of a bolt with `columnar=`. Cost: one call of the user's code a batch, and that of `fit`.

    >>> from windowing.schema.rows import rows_of
    >>> from windowing.topology.components import TopologyContext
    >>> from windowing.topology.decorators import bolt, declaration_of
    >>> @bolt(output="n long", columnar="arrow")
    ... def positive(batch):
    ...     return batch.filter(pa.compute.greater(batch["n"], 0))
    >>> caller = ColumnarCaller(declaration_of(positive))
    >>> caller.open(TopologyContext("positive"))
    >>> caller.execute_batch(pa.table({"n": [3, -1]}), "default", lambda *found: list(rows_of(*found)))
    [('default', [(3,)])]
    """

    __slots__ = ("_form", "_home")

    def __init__(self, declared: Declaration) -> None:
        super().__init__(declared)
        assert declared.columnar is not None
        self._form = declared.columnar
        self._home = home_of(self._target, self._method)
        if self._form == "pandas":
            _pandas(declared.name)

    def execute_batch(self, batch: pa.Table, stream: str, fit: Fit) -> list[tuple[str, Any]]:
        """Call the bolt on rows of an input stream; return its output by stream, each table converted by `fit`.

        Raises BoltError, or the user's FailedException.
        """
        try:
            returned = self._call(batch if self._form == "arrow" else _frame(batch, _pandas(self._owner)))
            return [(name, fit(table, self.streams.schema(name), name)) for name, table in self._tables(returned)]
        except FailedException:
            raise
        except BaseException as problem:
            rows = f"{batch.num_rows} row{'s' * (batch.num_rows != 1)}"
            raise self.user_code_error(problem, f"on a batch of {rows} of stream {stream!r}") from problem

    def user_code_error(self, problem: BaseException, where: str) -> BaseException:
        """Return the error to raise `from` an exception of the code; for a wrong batch it names the first line of the bolt."""
        if isinstance(problem, RowError):  # raised by the library after the bolt had returned
            return user_code_error(self._owner, problem.with_traceback(None), where, self._file, self._home)
        return user_code_error(self._owner, problem, where, self._file)

    def _tables(self, returned: Any) -> Iterator[tuple[str, pa.Table]]:
        if returned is None:
            return
        refuse_awaitable(returned)
        if not self._declared.outputs:
            refuse_rows(returned)
            return
        by_stream = returned if isinstance(returned, Mapping) else {DEFAULT_STREAM: returned}
        for stream, given in by_stream.items():
            schema = self.streams.schema(stream)
            if given is not None:
                table = _table(given)
                _refuse_dicts(table, schema, stream)
                yield stream, table


def _table(given: Any) -> pa.Table:
    """Return a batch that a bolt returned as a table. Raises RowError for any other object."""
    try:
        if isinstance(given, pa.RecordBatch):
            given = pa.Table.from_batches([given])
        elif _is_frame_of_pandas(given):
            frame, given = given, pa.Table.from_pandas(given, preserve_index=False)
            for at, field in enumerate(given.schema):
                if not pa.types.is_nested(field.type) and is_changed(frame.iloc[:, at], field.type):
                    mixed = "times beside dates" if pa.types.is_date(field.type) else "texts beside bytes"
                    raise RowError(f"its DataFrame has {mixed} in the column {field.name!r}; give values of one type")
        if isinstance(given, pa.Table):
            given.validate()
            return given
    except UNFIT as problem:
        raise RowError(f"its batch cannot be taken apart into columns: {describe_error(problem)}") from problem
    raise RowError(
        f"it returned {quote(given)}, where a batch is wanted: give a pyarrow Table or RecordBatch, or a DataFrame of pandas; a "
        "mapping of streams to such; or None for nothing"
    )


def _refuse_dicts(table: pa.Table, schema: Schema, stream: str) -> None:
    """Raise RowError for dicts of a DataFrame in a field of maps, because Arrow makes structs of them, each with the keys of
    all.
    """
    for name, kind in zip(schema.names, schema.types, strict=True):
        at = table.schema.get_field_index(name)
        if kind.startswith("map") and at >= 0 and pa.types.is_struct(table.schema.field(at).type):
            raise RowError(
                f"field {name!r} of stream {stream!r} is {kind}, and its batch has a column of dicts, which are a struct in Arrow: "
                "each would get the keys of all; give a column of Arrow's map type "
                "(pandas.ArrowDtype(pyarrow.map_(keys, values)), or a pyarrow Table)"
            )


def _frame(table: pa.Table, pandas: Any) -> Any:
    """Return a table as a DataFrame with types that represent all its values, None included."""
    nullable = {
        pa.bool_(): pandas.BooleanDtype(),
        pa.int8(): pandas.Int8Dtype(),
        pa.int16(): pandas.Int16Dtype(),
        pa.int32(): pandas.Int32Dtype(),
        pa.int64(): pandas.Int64Dtype(),
        pa.float32(): pandas.Float32Dtype(),
        pa.float64(): pandas.Float64Dtype(),
        pa.string(): pandas.StringDtype("pyarrow"),
    }
    return table.to_pandas(types_mapper=lambda kind: nullable.get(kind) or pandas.ArrowDtype(kind))


def _is_frame_of_pandas(given: Any) -> bool:
    return any(kind.__module__.partition(".")[0] == "pandas" for kind in type(given).__mro__) and hasattr(
        given, "columns"
    )


def _pandas(bolt: str) -> Any:
    try:
        import pandas
    except ImportError:
        raise ConfigError(
            f"bolt {bolt!r} says columnar='pandas', and pandas is not installed; install it, or say columnar='arrow'"
        ) from None
    return pandas
