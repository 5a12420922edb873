"""TableCodec and View: a Trident state that other programs read as a table of typed columns; used by `state_table`.

    state_table(store, "counts", "origin string, flights bigint")          stores/factory.py

    counts_state    the state's own rows (stores/sqlite.py, stores/postgres.py):  ["JFK"] -> 14
    counts          a view on them:  origin = 'JFK', flights = 14

All columns but the last are those of the key, in the order of `group_by`; the last is the value. A value that does not fit its
column raises TypeError before anything of the batch is stored, so no reader can see one. The view shows committed values; readers
are never blocked, and a statement reads one snapshot. Each partition of a state commits separately.

    kind                            PostgreSQL           SQLite
    string                          text                 text (without NUL)
    boolean                         boolean              0, 1
    tinyint .. bigint               smallint .. bigint   integer
    float, double                   double precision     real; NaN and the infinities as text
    decimal(p,s)                    numeric(p,s)         text
    date                            date                 text, 2013-01-31
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import date
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from typing import Any, NamedTuple

from windowing.errors import ConfigError, CorruptStateError, quote
from windowing.schema.types import WHOLE_BITS, FieldType, Schema

_IN_POSTGRES = {
    "string": "text",
    "boolean": "boolean",
    "tinyint": "smallint",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "float": "double precision",
    "double": "double precision",
    "date": "date",
}
_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def _to_string(value: Any, kind: FieldType) -> str | None:
    if type(value) is not str or "\0" in value:
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return None
    return value


def _to_integer(value: Any, kind: FieldType) -> int | None:
    half = 1 << (WHOLE_BITS[kind.kind] - 1)
    return value if type(value) is int and -half <= value < half else None


def _to_double(value: Any, kind: FieldType) -> float | str | None:
    if type(value) is int and abs(value) <= 1 << 53:
        value = float(value)
    if type(value) is not float:
        return None
    return value + 0.0 if math.isfinite(value) else "NaN" if value != value else f"{'-' if value < 0 else ''}Infinity"


def _to_decimal(value: Any, kind: FieldType) -> str | None:
    if type(value) not in (int, Decimal) or not (number := Decimal(value)).is_finite():
        return None
    precision, scale = kind.digits
    exact = Context(precision, traps=[Inexact, InvalidOperation])
    try:
        return f"{exact.quantize(number or Decimal(), Decimal((0, (1,), -scale))):f}"  # 0 and -0 are one key
    except DecimalException:
        return None


_WRITERS: dict[str, Callable[[Any, FieldType], Any]] = {
    "string": _to_string,
    "boolean": lambda value, kind: value if type(value) is bool else None,
    **dict.fromkeys(WHOLE_BITS, _to_integer),
    "float": _to_double,
    "double": _to_double,
    "decimal": _to_decimal,
    "date": lambda value, kind: value.isoformat() if type(value) is date else None,
}
_NO_COLUMN = "keep a time as milliseconds in a bigint, and what has no column in a map_state"
_FITTING = {
    **dict.fromkeys(WHOLE_BITS, tuple(WHOLE_BITS)),
    **dict.fromkeys(("float", "double"), (*WHOLE_BITS, "float", "double")),
    "decimal": (*WHOLE_BITS, "decimal"),
}
"""By the kind of a column: the kinds of fields of which it can hold values, for columns that hold more than their own kind."""
_READERS: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "double": float,
    "decimal": Decimal,
    "date": date.fromisoformat,
}


class View(NamedTuple):
    """A view on the rows of a state. cells: (name, position in the key or None for the value, PostgreSQL type) of each."""

    name: str
    state: str
    columns: str
    cells: tuple[tuple[str, int | None, str], ...]

    def in_sqlite(self) -> str:
        """Return the CREATE VIEW statement, in the form that SQLite stores."""
        return self._created(
            f"""json_extract(CAST({"value" if place is None else "key"} AS TEXT), '${"" if place is None else f"[{place}]"}')"""
            for _, place, _ in self.cells
        )

    def in_postgres(self) -> str:
        """Return the CREATE VIEW statement. Names and types were checked."""
        return self._created(
            f"(convert_from({'value' if place is None else 'key'}, 'UTF8')::json "
            f"#>> '{{{'' if place is None else place}}}')::{kind}"
            for _, place, kind in self.cells
        )

    def _created(self, cells: Iterable[str]) -> str:
        shown = ", ".join(f'{cell} AS "{name}"' for cell, (name, _, _) in zip(cells, self.cells, strict=True))
        return f'CREATE VIEW "{self.name}" AS SELECT {shown} FROM "{self.state}" WHERE value IS NOT NULL'

    def require(self, found: str, wanted: str, where: str) -> None:
        """Raise ConfigError unless the object with the name of the view is this view."""
        if found != wanted:
            raise ConfigError(
                f"{where} has something else of the name {self.name}, which the view of {self.columns} was to have; give the state "
                f"another name, or, if it is an older view of it, DROP VIEW {self.name}"
            )


@dataclass(frozen=True)
class TableCodec:
    """A codec for keys and values of these columns (a Schema as text): keys are JSON lists, values plain JSON.

    >>> codec = TableCodec("origin string, flights bigint")
    >>> codec.encode_key(("JFK",)), codec.encode(14), codec.decode(b'["JFK"]', "a key")
    (b'["JFK"]', b'14', ('JFK',))
    >>> codec.encode("fourteen")
    Traceback (most recent call last):
    TypeError: 'fourteen' is no bigint, which 'flights' is declared as
    """

    columns: str
    _typed: tuple[tuple[str, FieldType], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        schema = Schema.parse(self.columns)
        kinds = [FieldType.parse(written, name) for name, written in zip(schema.names, schema.types, strict=True)]
        if len(kinds) < 2:
            raise ConfigError(
                f"the columns of a table are those of the key, then the value, got {quote(self.columns)}; write 'origin string, "
                "flights bigint'"
            )
        for name, kind in zip(schema.names, kinds, strict=True):
            if kind.kind not in _WRITERS:
                raise ConfigError(
                    f"column {quote(name)} of a table is {kind}; there are {', '.join(_WRITERS)}: {_NO_COLUMN}"
                )
        object.__setattr__(self, "columns", schema.ddl)
        object.__setattr__(self, "_typed", tuple(zip(schema.names, kinds, strict=True)))

    @property
    def name(self) -> str:
        """The name of the format. It contains the columns, so stored values of other columns are refused before they are read."""
        return f"table({self.columns})"

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value. Raises TypeError if it does not fit its column."""
        return _json(_written(value, *self._typed[-1])).encode()

    def encode_key(self, key: Any) -> bytes:
        """Return the bytes of a key, a tuple. Raises TypeError if it does not fit its columns."""
        *columns, _ = self._typed
        if not isinstance(key, tuple) or len(key) != len(columns):
            has = f"has {len(key)} values" if isinstance(key, tuple) else "is no tuple"
            named = ", ".join(name for name, _ in columns)
            raise TypeError(f"the key {quote(key)} {has}, and the table has {len(columns)} columns for it: {named}")
        return _json(
            [None if part is None else _written(part, *field) for part, field in zip(key, columns, strict=True)]
        ).encode()

    def decode(self, blob: bytes, what: str) -> Any:
        """Return the key or value. Raises CorruptStateError for invalid bytes."""
        *key, last = self._typed
        try:
            found = json.loads(blob)
            if not isinstance(found, list):
                return _read(found, *last)
            return tuple(_read(part, *field) for part, field in zip(found, key, strict=True))
        except (ValueError, ArithmeticError, TypeError, RecursionError) as problem:
            raise CorruptStateError(
                f"{what} is {quote(blob)}, which fits no column of {self.columns}; restore the state from a copy; nothing was reset"
            ) from problem

    def misfit(self, key: Schema, value: Schema) -> str | None:
        """Return how a table cannot hold an aggregate with these fields, None if it can: the planner of Trident asks.

        value: the field of the values, no field if their types are known only when they are stored.
        """
        if not key:
            return (
                "keeps one value, and a table has a row for each key; write group_by(...) before it, or keep the value in a "
                "snapshot_state"
            )
        *columns, _ = self._typed
        fields, way_out = Schema(key.names + value.names, key.types + value.types), _NO_COLUMN
        kinds = [FieldType.parse(kind, name).kind for name, kind in zip(fields.names, fields.types, strict=True)]
        if _WRITERS.keys() >= set(kinds):
            way_out = f"declare columns for {fields.ddl}" + ("" if value else " and the value")
        if len(key) != len(columns):
            has = ", ".join(f"{name} {kind}" for name, kind in columns)
            return f"keeps values by {key.ddl}, for which its table has {has}; {way_out}"
        for name, declared, kind, (column, held) in zip(fields.names, fields.types, kinds, self._typed, strict=False):
            if kind not in _FITTING.get(held.kind, (held.kind,)):
                return f"keeps {name} {declared}, which its table has as {column} {held}; {way_out}"
        return None

    def view(self, state: str, name: str) -> View:
        """Return the view `name` on the rows of a state."""
        *key, (last, kind) = self._typed
        cells = [(name, position, _in_postgres(kind)) for position, (name, kind) in enumerate(key)]
        return View(name, state, self.columns, (*cells, (last, None, _in_postgres(kind))))


def _written(value: Any, name: str, kind: FieldType) -> Any:
    written = _WRITERS[kind.kind](value, kind)
    if written is None:
        raise TypeError(f"{quote(value)} is no {kind}, which {name!r} is declared as")
    return written


def _read(found: Any, name: str, kind: FieldType) -> Any:
    if found is None:
        return None
    value = _READERS.get(kind.kind, lambda same: same)(found)
    _written(value, name, kind)
    return value


def _in_postgres(kind: FieldType) -> str:
    return "numeric({},{})".format(*kind.digits) if kind.kind == "decimal" else _IN_POSTGRES[kind.kind]
