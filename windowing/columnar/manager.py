"""ColumnarWindowManager: WindowManager over columns, for bolts with `columnar=`.

    add_batch(table, timestamps) --> ColumnBuffer --> window.get(): a slice of the table, no row in between

Laws: those of WindowManager, by the same property tests. Only the queue is another one, and what a window hands out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from windowing.columnar.buffer import ColumnBuffer
from windowing.columnar.panes import over_columns
from windowing.columnar.rows import ColumnRows, MakeRows
from windowing.columnar.views import ColumnContent
from windowing.core.checks import DEFAULT_STREAM
from windowing.core.config import WindowConfig
from windowing.core.executor import WindowedBoltExecutor
from windowing.core.manager import WindowManager
from windowing.core.mixes import Firing
from windowing.core.track import WindowTrack
from windowing.core.windows import TupleWindow, WindowContent
from windowing.errors import ConfigError

__all__ = ["ColumnarWindowManager", "columnar_executor"]


class ColumnarWindowManager(WindowManager):
    """The windows of one task over columns. Tuples come as ColumnRows, or as rows with named fields, which are converted.

    `make` makes row objects of a table where somebody asks for them (late tuples), dicts where it is left out.

    >>> import pyarrow as pa
    >>> from windowing.core.events import Activation
    >>> from windowing.core.measures import count
    >>> manager = ColumnarWindowManager(WindowConfig(length=count(2), slide=count(2), timestamp="ts", columnar="numpy"))
    >>> list(manager.add_batch(ColumnRows(pa.table({"v": [5, 6, 7]})), [1, 2, 3]))
    []
    >>> [int(e.window.column("v").sum()) for e in manager.advance(3) if isinstance(e, Activation)]
    [11]
    """

    kind = "ColumnarWindowManager"

    def __init__(self, config: WindowConfig, *, sequenced: bool = False, make: MakeRows | None = None) -> None:
        super().__init__(config, sequenced=sequenced)
        if config.columnar is None:
            raise ConfigError(
                "a machine of columns needs to know what windows hand out; give columnar='arrow' or 'numpy'"
            )
        self._form = config.columnar
        self._make = make

    def _buffer(self) -> ColumnBuffer:
        return ColumnBuffer(self._sequenced, self._make)

    def _window(self, track: WindowTrack, firing: Firing) -> TupleWindow:
        return track.fire(firing, self._mix.length_ms, self._sequence, self._tally, make=self._viewed)

    def _viewed(self, content: WindowContent, start: int | None, end: int, key: Any) -> TupleWindow:
        return TupleWindow(ColumnContent(content, self._form), start, end, key)

    def _stage_by_key(
        self, payloads: Sequence[Any], timestamps: Sequence[int], keys: Sequence[Any]
    ) -> list[tuple[WindowTrack, Sequence[int] | None]]:
        rows = ColumnRows.of(payloads) if self._make is None else ColumnRows.of(payloads, self._make)
        positions: dict[Any, list[int]] = {}
        for position, key in enumerate(keys):
            positions.setdefault(key, []).append(position)
        staged: list[tuple[WindowTrack, Sequence[int] | None]] = []
        for key, at in positions.items():
            track = self._tracks.get(key) or self._new_track(key)
            self._touched[key] = track
            numbers = [self._sequence + position for position in at]
            _columns(track).stage_at([timestamps[position] for position in at], rows.take(at), numbers)
            staged.append((track, at))
        return staged

    # -- for drivers that store the tuples themselves ------------------------------------------------------------------

    def held_sequences(self) -> np.ndarray[Any, Any]:
        """Return the arrival numbers of the tuples that `held_since(0)` would yield, without making one."""
        self.enter()
        held = []
        for track in self._tracks.values():
            track.settle(self._by_window)
            held.append(_columns(track).sequences_from(track.held_from))
        return np.concatenate(held) if held else np.empty(0, dtype=np.int64)

    def load(
        self, keys: Sequence[Any] | None, sequences: Sequence[int], timestamps: Sequence[int], payloads: Sequence[Any]
    ) -> None:
        """Give a machine restored from a snapshot without events its tuples back."""
        rows = ColumnRows.of(payloads) if self._make is None else ColumnRows.of(payloads, self._make)
        numbers, times = np.asarray(sequences, dtype=np.int64), np.asarray(timestamps, dtype=np.int64)
        positions: dict[Any, list[int]] = {}
        if keys is None and len(rows):
            positions[None] = list(range(len(rows)))
        for position, key in enumerate(keys or ()):
            positions.setdefault(key, []).append(position)
        for key, places in positions.items():
            at = np.asarray(places)
            at = at[np.lexsort((numbers[at], times[at]))]
            buffer = _columns(self._tracks[key])
            ordered = len(at) == len(rows) and bool((at[1:] > at[:-1]).all())
            buffer.load(times[at], rows if ordered else rows.take(at), numbers[at], buffer.base)


def _columns(track: WindowTrack) -> ColumnBuffer:
    buffer = track.buffer
    assert isinstance(buffer, ColumnBuffer), "all queues of this machine are columns"
    return buffer


def columnar_executor(
    config: WindowConfig,
    streams: Sequence[str] = (DEFAULT_STREAM,),
    component: str = "bolt",
    sequenced: bool = False,
    make: MakeRows | None = None,
) -> WindowedBoltExecutor:
    """Return a WindowedBoltExecutor over columns, for a definition with `columnar=`; arguments as there, and `make` as above.

    `add_batch` then takes ColumnRows (or an Arrow table's rows) in place of a list of tuples. With `aggregate=` no tuples are
    kept, so `sequenced` and `make` mean nothing.
    """
    executor = WindowedBoltExecutor(config, streams, component)
    if config.aggregate is not None:
        return over_columns(executor)
    executor.manager = ColumnarWindowManager(config, sequenced=sequenced, make=make)
    return executor
