"""The keys of a windowed task in columns: a turn loads only those that get a tuple, or whose deadline has come.

    metadata   key (typed JSON) | ordinal ... newest (KeyState.numbers) | deadline     one row for each key, Arrow IPC, zstd
    chunks     rows of all keys, found by the columns of `key=`

                  +-- keys of the batch, keys that are due --> machine --+
    stored keys --+                                                      +--> stored keys
                  +-- all other keys: copied by Arrow -------------------+

Laws: the rows and the state of a turn are those of a turn that loads all keys. A turn costs under a microsecond for an idle key,
and 50 ns for each of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from windowing.codec import decode_value, encode_text
from windowing.columnar import Keys
from windowing.errors import CorruptStateError
from windowing.spark.state import SEQUENCE, TIMESTAMP, decode_table
from windowing.windows.config import WindowConfig
from windowing.windows.key_state import SETTLED, KeyState
from windowing.windows.manager import StoredKeys

__all__ = [
    "StoredIdleKeys",
    "deadline_options",
    "states_of",
    "stored_keys",
]


_KEY, _DEADLINE = "key", "deadline"
_COLUMNS = pa.schema(
    [pa.field(_KEY, pa.large_string()), *(pa.field(name, pa.int64()) for name in (*SETTLED, _DEADLINE))]
)
_NEVER = int(np.iinfo(np.int64).max)
"""The deadline of a key without one, and of one with a later deadline, which no watermark reaches."""
_ZSTD = pa.ipc.IpcWriteOptions(compression="zstd")


def deadline_options(config: WindowConfig) -> str:
    """Return the options from which deadlines are derived, as text: stored deadlines count only under the same options."""
    timed = config.length, config.slide, config.offset_ms, config.lateness.value, config.event_time
    return repr((*timed, config.repeat, config.key_ttl_ms))


def stored_keys(idle: pa.Table | None, loaded: Sequence[KeyState]) -> bytes:
    """Return the keys to store: those that stayed idle, as they are, and those that were loaded."""
    numbers = list(zip(*(state.numbers() for state in loaded), strict=True)) or [()] * len(SETTLED)
    deadlines = [None if state.deadline is None else min(state.deadline, _NEVER) for state in loaded]
    columns = [[encode_text(state.key) for state in loaded], *numbers, deadlines]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _COLUMNS, strict=True)]
    table = pa.table(arrays, schema=_COLUMNS)
    if idle is not None:
        table = pa.concat_tables([idle, table]).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _COLUMNS, options=_ZSTD) as writer:
        writer.write(table)
    return bytes(sink.getvalue())


def states_of(stored: bytes, what: str) -> list[dict[str, Any]]:
    """Return the states of all stored keys, in order of first arrival, in the form of a snapshot without tuples."""
    table = _decoded(stored, what).sort_by("ordinal")
    return _states(table, _keys_of(table, what))


def _decoded(stored: bytes, what: str) -> pa.Table:
    try:
        table = decode_table(stored)
    except pa.ArrowInvalid as problem:
        raise CorruptStateError(f"{what} has keys that are no Arrow stream: {problem}; nothing was reset") from problem
    if table.schema.names != _COLUMNS.names:
        raise CorruptStateError(
            f"{what} has keys with the columns {', '.join(table.schema.names)}, wanted {', '.join(_COLUMNS.names)}; "
            "nothing was reset"
        )
    return table


def _keys_of(table: pa.Table, what: str) -> list[Any]:
    texts = ",".join(table.column(_KEY).to_pylist())
    keys: list[Any] = decode_value(f"[{texts}]".encode(), what)
    return keys


def _states(table: pa.Table, keys: Sequence[Any]) -> list[dict[str, Any]]:
    columns = (table.column(name).to_pylist() for name in SETTLED)
    states = []
    for key, numbers in zip(keys, zip(*columns, strict=True), strict=True):
        state: dict[str, Any] = dict(zip(SETTLED, numbers, strict=True))
        state |= {"key": key, "last": None, "last_window": [state.pop("last_low"), state.pop("last_high")]}
        states.append(state)
    return states


class StoredIdleKeys:
    """The IdleKeys of a task. rows: the tuples of all keys (`ChunkStore.read`), with `columns`, the keys of the rows.

    payloads: makes the tuples of rows. what: names the task in errors.
    """

    def __init__(
        self,
        stored: bytes,
        rows: pa.Table | None,
        columns: Keys | None,
        payloads: Callable[[pa.Table], Sequence[Any]],
        what: str,
    ) -> None:
        self._table = _decoded(stored, what)
        self._rows, self._columns, self._payloads, self._what = rows, columns, payloads, what
        self._deadlines = self._table.column(_DEADLINE).fill_null(_NEVER).to_numpy()
        self._idle = np.ones(self._table.num_rows, dtype=bool)
        self.idle_rows = np.ones(0 if rows is None else rows.num_rows, dtype=bool)
        """Which rows belong to idle keys."""

    @cached_property
    def _keys(self) -> list[Any]:
        return _keys_of(self._table, self._what)

    @cached_property
    def _places(self) -> dict[Any, int]:
        return dict(zip(self._keys, range(len(self._keys)), strict=True))

    @cached_property
    def _coded(self) -> tuple[np.ndarray[Any, Any], list[Any], dict[Any, int]]:
        """The number of each row's key, the keys of the numbers, and the numbers of the keys."""
        assert self._columns is not None
        numbers, keys = self._columns.coded()
        return numbers, keys, dict(zip(keys, range(len(keys)), strict=True))

    def of(self, keys: Iterable[Any]) -> StoredKeys | None:
        """Return those of `keys` that are idle, None if there is none."""
        places = self._places
        found = np.array([places[key] for key in keys if key in places], dtype=np.int64)
        return self._loaded(found[self._idle[found]])

    def due(self, until: int | None) -> StoredKeys | None:
        """Return the idle keys whose deadline is at most `until` (None: all idle keys), None if there is none."""
        return self._loaded(np.flatnonzero(self._idle if until is None else self._idle & (self._deadlines <= until)))

    def left(self) -> pa.Table:
        """Return the keys that are idle still."""
        return self._table if self._idle.all() else self._table.filter(pa.array(self._idle))

    def _loaded(self, places: np.ndarray[Any, Any]) -> StoredKeys | None:
        if not len(places):
            return None
        self._idle[places] = False
        keys = [self._keys[place] for place in places.tolist()]
        return StoredKeys(_states(self._table.take(pa.array(places)), keys), *self._tuples_of(keys))

    def _tuples_of(self, keys: Sequence[Any]) -> tuple[Sequence[Any], Sequence[int], Sequence[int], Sequence[Any]]:
        if self._rows is None:
            return (), (), (), ()
        numbers, distinct, number_of = self._coded
        wanted = np.zeros(len(distinct), dtype=bool)
        wanted[[number_of[key] for key in keys if key in number_of]] = True
        positions = np.flatnonzero(wanted[numbers])
        self.idle_rows[positions] = False
        rows = self._rows.take(pa.array(positions))
        of_rows = [distinct[number] for number in numbers[positions].tolist()]
        return of_rows, rows.column(SEQUENCE).to_pylist(), rows.column(TIMESTAMP).to_pylist(), self._payloads(rows)
