"""The watermark: the progress of event time, computed from the timestamps of all input streams.

    stream a    ..3....7.....9          largest 9
    stream b    ....2....5              largest 5   <- the minimum; W = 5 - lag at the next advance
                             advance

Laws (lossless): W changes only in an advance, never falls, and is -infinity (None) until every declared stream has had a
tuple. It is the minimum, over the streams or over the (stream, source) pairs so far, of the largest timestamp, minus the
lag. A stream or pair that is silent for the idle timeout is left out of the minimum; when all are silent W stays. A silent
pair is forgotten when W has passed its largest timestamp, because from then on it is the same as one that comes anew. In
Storm's semantics W begins at 0, is per stream, and no stream is ever idle. The driver passes the time; this module
reads no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from windowing.errors import UNREADABLE, ConfigError, SnapshotError, damaged, quote
from windowing.windows.config import Semantics

_VERSION = 1

SourceKey = str | int | None

_largest = itemgetter(0)


@dataclass(slots=True, eq=False)
class _StreamMark:
    """The state of a stream, or of one source in it; last_seen_ms is the clock, None before the first clock."""

    largest_ms: int
    last_seen_ms: int | None


class WaterMarkEventGenerator:
    """Keeps the largest timestamps, and computes at each advance whether the watermark rises.

    streams: the declared input streams. lag_ms: how far W stays behind. idle_timeout_ms: see the laws above. sourced: whether each
    source of a stream (such as a Kafka partition) has its own largest timestamp. Cost: O(1) a `track`, O(streams and sources) a
    `turn`. Source: Storm's `WaterMarkEventGenerator`, without its thread.

    >>> generator = WaterMarkEventGenerator(["a", "b"], lag_ms=5)
    >>> generator.track("a", 110), generator.turn()
    (True, None)
    >>> generator.track("b", 98), generator.turn(), generator.turn()
    (True, 93, None)
    >>> generator.track("b", 92)
    False
    """

    def __init__(
        self,
        streams: Sequence[str],
        lag_ms: int = 0,
        semantics: Semantics = Semantics.LOSSLESS,
        idle_timeout_ms: int | None = None,
        sourced: bool = False,
    ) -> None:
        if not streams:
            raise ConfigError(
                "a watermark needs at least one input stream, got none; declare the streams that the bolt reads"
            )
        self._streams = tuple(dict.fromkeys(streams))
        self._lag_ms = lag_ms
        self._semantics = semantics
        self._idle_timeout_ms = idle_timeout_ms
        self._sourced = sourced
        self._marks: dict[tuple[str, SourceKey], _StreamMark] = {}
        self._unseen = set(self._streams)
        self._first_now_ms: int | None = None
        self.watermark: int | None = 0 if semantics is Semantics.STORM else None
        """W after the last advance, None for -infinity."""
        self.slowest: tuple[str, SourceKey, int | None] | None = None
        """Which stream and source held W back in the last advance, and their largest timestamp (None: no tuple); the newest if all
        were idle."""
        if semantics is Semantics.STORM and (sourced or idle_timeout_ms is not None):
            raise ConfigError(
                'semantics="storm" knows neither sources nor idle streams; leave out source= and idle_timeout=, '
                'or use semantics="lossless"'
            )

    def track(self, stream: str, timestamp_ms: int, source: SourceKey = None, now_ms: int | None = None) -> bool:
        """Record the timestamp of a tuple, or the newest of a batch; return whether it is on time by the current W.

        `now_ms` is the clock, for the idle timeout. Raises ConfigError if the stream was not declared.
        """
        key = (stream, source if self._sourced else None)
        mark = self._marks.get(key)
        if mark is None:
            self.refuse_undeclared([stream])
            self._unseen.discard(stream)
            mark = self._marks[key] = _StreamMark(timestamp_ms, None)
        elif timestamp_ms > mark.largest_ms:
            mark.largest_ms = timestamp_ms
        if self._first_now_ms is None:
            self._first_now_ms = now_ms
        if now_ms is not None and (mark.last_seen_ms is None or now_ms > mark.last_seen_ms):
            mark.last_seen_ms = now_ms
        watermark = self.watermark
        return watermark is None or timestamp_ms >= watermark

    def merge(self, other: WaterMarkEventGenerator) -> None:
        """Record the timestamps of another generator of the same streams, such as that of a task of the same bolt."""
        for (stream, source), mark in other._marks.items():
            self.track(stream, mark.largest_ms, source, mark.last_seen_ms)

    def refuse_undeclared(self, streams: Iterable[str]) -> None:
        """Raise ConfigError for a stream that was not declared."""
        for stream in streams:
            if stream not in self._streams:
                declared = ", ".join(map(quote, self._streams))
                raise ConfigError(
                    f"a tuple came on stream {quote(stream)}, which is not declared; the declared streams are {declared}; "
                    "declare it as an input of the bolt"
                )

    def turn(self, now_ms: int | None = None) -> int | None:
        """Advance: return the new watermark if it rises, else None."""
        if self._first_now_ms is None:
            self._first_now_ms = now_ms
        marks = self._marks.items()
        awake = [(mark.largest_ms, key) for key, mark in marks if not self._idle(mark.last_seen_ms, now_ms)]
        reached: int | None = None  # the timestamp that all inputs have reached; None where W stays
        if self._unseen and not self._idle(None, now_ms):  # a declared stream without a tuple holds back W
            self.slowest = next(stream for stream in self._streams if stream in self._unseen), None, None
            reached = 0 if self._semantics is Semantics.STORM else None
        elif awake:
            reached, slowest = min(awake, key=_largest)
            self.slowest = *slowest, reached
        else:
            newest = max(((mark.largest_ms, key) for key, mark in marks), key=_largest, default=None)
            self.slowest = None if newest is None else (*newest[1], newest[0])
        before = self.watermark
        if reached is not None and (before is None or reached - self._lag_ms > before):
            self.watermark = reached - self._lag_ms
        if self._sourced and self._idle_timeout_ms is not None and self.watermark is not None:
            self._forget_idle(self.watermark + self._lag_ms, now_ms)
        return None if self.watermark == before else self.watermark

    def _idle(self, last_seen_ms: int | None, now_ms: int | None) -> bool:
        """Return whether the idle timeout has passed since `last_seen_ms` (None: since the first clock)."""
        if self._idle_timeout_ms is None or now_ms is None:
            return False
        since_ms = self._first_now_ms if last_seen_ms is None else last_seen_ms
        return since_ms is not None and now_ms - since_ms >= self._idle_timeout_ms

    def _forget_idle(self, passed_ms: int, now_ms: int | None) -> None:
        """Forget idle sources up to this timestamp; one stays, as a sign that its stream has had a tuple."""
        marks = self._marks.items()
        gone = [key for key, mark in marks if mark.largest_ms <= passed_ms and self._idle(mark.last_seen_ms, now_ms)]
        if gone:
            left = Counter(stream for stream, _ in self._marks)
            for key in gone:
                if left[key[0]] > 1:
                    left[key[0]] -= 1
                    del self._marks[key]

    def snapshot(self) -> dict[str, Any]:
        """Return all state as plain data. Cost: O(streams and sources)."""
        return {
            "version": _VERSION,
            "semantics": self._semantics.value,
            "sourced": self._sourced,
            "watermark": self.watermark,
            "first_now_ms": self._first_now_ms,
            "marks": [[*key, mark.largest_ms, mark.last_seen_ms] for key, mark in self._marks.items()],
        }

    def restore(self, data: dict[str, Any]) -> None:
        """Restore the state from a snapshot; lag and timeouts may have changed. Raises SnapshotError if the rest has."""
        wanted = [_VERSION, self._semantics.value, self._sourced]
        if not isinstance(data, dict) or [data.get(name) for name in ("version", "semantics", "sourced")] != wanted:
            raise SnapshotError(
                f"the snapshot is {quote(data)}, this watermark wants version, semantics, sourced = {quote(wanted)}; "
                "restore it into a bolt of the same definition"
            )
        try:
            marks = {(stream, source): _StreamMark(largest, seen) for stream, source, largest, seen in data["marks"]}
            watermark, first_now_ms = data["watermark"], data["first_now_ms"]
        except UNREADABLE as problem:
            raise damaged(problem) from problem
        foreign = sorted({stream for stream, _ in marks} - set(self._streams))
        if foreign:
            raise SnapshotError(
                f"the snapshot knows streams that are not declared any more: {quote(foreign)}; declare them"
            )
        self._marks, self.watermark, self._first_now_ms = marks, watermark, first_now_ms
        self._unseen = set(self._streams) - {stream for stream, _ in marks}

    def check(self) -> None:
        """Assert the invariants."""
        # Every mark is of a declared stream, and a stream is unseen until it has a mark.
        assert {stream for stream, _ in self._marks} | self._unseen == set(self._streams)
        assert not self._unseen & {stream for stream, _ in self._marks}
        # Without sources there is one mark a stream.
        assert self._sourced or all(source is None for _, source in self._marks)
        # Storm's watermark begins at 0 and never falls.
        assert self._semantics is Semantics.LOSSLESS or (self.watermark is not None and self.watermark >= 0)
        # No mark has a time if there was no clock.
        assert self._first_now_ms is not None or all(mark.last_seen_ms is None for mark in self._marks.values())
