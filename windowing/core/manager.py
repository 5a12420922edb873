"""WindowManager: tuples in, windows out, without losing one.

A micro-batch is: all its tuples in arrival order, then one watermark turn.

    add 3, add 9, add 4      tumbling 5                 W = -inf: nothing fires, the queue is 3 4 9
    advance(7)               W = 7, the end 5 passed    Activation (0, 5] holds 3 4, then Expired 3 4
    drain()                  W = infinity               Activation (5, 10] holds 9, then Expired 9

Laws
- The machine decides, the driver acts: every entry returns an iterator of effects, in the order in which they are to be done.
- Event time: windows are numbered and fired only in a turn that raises W, or in `drain`. A Count slide on processing time fires on
  the add of its K-th tuple.
- Firings of one turn come in (end or reference, first arrival of the key) order; expiries follow the turn's last firing.
- accepted == shown + skipped + pending; each accepted tuple expires exactly once, after the last window that shows it.
- The watermark never falls; a turn that does not raise it does nothing at all.

Source: Storm's `WindowManager`; the semantics are those of docs/semantics.md, not Storm's (those are in storm.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from operator import itemgetter
from typing import Any

from windowing.core.config import WindowConfig
from windowing.core.keyed import KeyedMachine
from windowing.core.mixes import Firing
from windowing.core.queue import ListBuffer, TupleBuffer
from windowing.core.track import Fold, WindowTrack
from windowing.core.windows import TupleWindow

__all__ = ["StatefulWindowManager", "WindowManager"]


class WindowManager(KeyedMachine[WindowTrack]):
    """The windows of one task in lossless semantics, of all its keys if the definition has `key=`.

    `sequenced=True` keeps arrival numbers, for a driver that stores the tuples itself (`held_since`, `load`). `fold` makes
    `window.aggregate` from the list of a window's tuples.

    >>> from windowing.core.events import Activation
    >>> from windowing.core.measures import count
    >>> manager = WindowManager(WindowConfig(length=count(2), slide=count(2), timestamp="ts"))
    >>> list(manager.add_batch(["a", "b", "c"], [1, 2, 3]))
    []
    >>> [effect.window.get() for effect in manager.advance(3) if isinstance(effect, Activation)]
    [['a', 'b']]

    `add_batch` yields each effect with the position of the tuple that caused it, the other entries effects alone:

    >>> by_arrival = WindowManager(WindowConfig(length=count(2), slide=count(2)))
    >>> for position, effect in by_arrival.add_batch(["a", "b", "c"], [0, 0, 0]):
    ...     print(position, effect.window.get() if isinstance(effect, Activation) else effect)
    1 ['a', 'b']
    1 Expired(count=2, key=None)
    """

    kind = "WindowManager"

    def __init__(self, config: WindowConfig, *, sequenced: bool = False, fold: Fold | None = None) -> None:
        super().__init__(config)
        self._sequenced = sequenced or self._by_window
        self._fold = fold
        if self._stepping is None and not self._keyed and type(self)._buffer is WindowManager._buffer:
            self.inbox = []

    def _track(self, key: Any, ordinal: int) -> WindowTrack:
        return WindowTrack(key, ordinal, self._buffer(), self._sequence)

    def _restored(self, data: dict[str, Any]) -> WindowTrack:
        return WindowTrack.restored(data, self._buffer())

    def _buffer(self) -> TupleBuffer:
        """Return the queue of a new track."""
        return ListBuffer(self._sequenced)

    def _window(self, track: WindowTrack, firing: Firing) -> TupleWindow:
        return track.fire(firing, self._mix.length_ms, self._sequence, self._tally, self._fold)

    def _tuples(self, track: WindowTrack, low: int, high: int) -> Callable[[], Sequence[Any]]:
        return partial(track.buffer.slice, low, high)

    # -- for drivers that store the tuples themselves ------------------------------------------------------------------

    @property
    def next_sequence(self) -> int:
        """The arrival number of the next tuple, from 0."""
        self._take_in()
        return self._sequence

    def held_since(self, sequence: int) -> Iterator[tuple[int, int, Any]]:
        """Yield (sequence, timestamp, tuple) of every tuple that is held and arrived at `sequence` or later.

        For a driver that stores tuples apart (`sequenced=True`): what is not yielded for 0 is needed no more. Between turns only.
        """
        self.enter()
        for track in self._tracks.values():
            track.settle(self._by_window)
            yield from _listed(track.buffer).since(track.held_from, sequence)

    def held(self) -> Iterator[tuple[Any, int, int, Any, bool]]:
        """Yield (key, sequence, timestamp, tuple, whether it has expired) of all that is held, key by key in queue order.

        What has expired is held while the next window may report it as expired. As `held_since`, between turns only.
        """
        self.enter()
        for track in self._tracks.values():
            track.settle(self._by_window)
            expired = track.horizon - track.held_from
            for number, entry in enumerate(_listed(track.buffer).since(track.held_from, 0)):
                yield track.key, *entry, number < expired

    def load(
        self, keys: Sequence[Any] | None, sequences: Sequence[int], timestamps: Sequence[int], payloads: Sequence[Any]
    ) -> None:
        """Give a machine restored from a snapshot without events its tuples back: exactly those `held_since(0)` had yielded."""
        held: dict[Any, list[tuple[int, int, Any]]] = {}
        for key, *entry in zip(
            repeat(None) if keys is None else keys, timestamps, sequences, payloads, strict=keys is not None
        ):
            held.setdefault(key, []).append((entry[0], entry[1], entry[2]))
        for key, entries in held.items():
            entries.sort(key=itemgetter(0, 1))
            ordered_at, numbers, tuples = zip(*entries, strict=True)
            buffer = _listed(self._tracks[key].buffer)
            buffer.load(ordered_at, tuples, numbers, buffer.base)


def _listed(buffer: TupleBuffer) -> ListBuffer:
    assert isinstance(buffer, ListBuffer), "a driver stores the tuples of list buffers only"
    return buffer


class StatefulWindowManager(WindowManager):
    """The manager of bolts that keep state over their windows.

    Storm's walks its windows by iterator and gives no new or expired tuples; in lossless semantics every window is lazy and has
    both, so nothing is left to differ. Source: Storm's `StatefulWindowManager` (its own behaviour: `StormStatefulWindowManager`).
    """
