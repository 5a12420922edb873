"""How far the sources of a query are read: `lag_of` a progress report, and the offsets that a topic of Kafka had lost before.

    offset of a topic              {"flights": {"0": 41, "1": 7}}
    offset of a PartitionedSpout   {"spout": "words", "from": {"0": 30}, "to": {"0": 41}}

A batch begins where the one before it ended, by Spark's log. What lies between that and the first offset that the topic still has,
when the batch is about to be evaluated, is gone: Spark leaves it out (`failOnDataLoss`), and `SkippedOffsets` counts it.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pyspark.sql.streaming.listener import StreamingQueryProgress

__all__ = [
    "SkippedOffsets",
    "lag_of",
    "skip_gaps_of",
]


_log = logging.getLogger("windowing.spark")
Bounds = Callable[[], Mapping[int, tuple[int, int]]]
"""What a topic has: of each partition [the first offset that is there, the one behind the last)."""
_SKIPPING: dict[str, Bounds] = {}


def skip_gaps_of(topic: str, bounds: Bounds) -> None:
    """Count what is left out of a topic, in each query that reads it."""
    _SKIPPING[topic] = bounds


def lag_of(progress: StreamingQueryProgress) -> dict[str, dict[str, int]]:
    """Return how many offsets a batch is behind the end of its sources, by source and partition, of those that say both."""
    found: dict[str, dict[str, int]] = {}
    for source in progress.sources:
        newest = _places(source.latestOffset)
        for name, read in _places(source.endOffset).items():
            behind = {
                part: max(0, newest[name][part] - at) for part, at in read.items() if part in newest.get(name, {})
            }
            if behind:
                found.setdefault(name, {}).update(behind)
    return found


def _places(text: Any) -> dict[str, dict[str, int]]:
    """Return an offset by source and partition; nothing of an offset of another kind."""
    try:
        offset = json.loads(text)
    except (TypeError, ValueError):
        return {}
    if not isinstance(offset, dict):
        return {}
    if "spout" in offset:
        offset = {str(offset["spout"]): offset.get("to")}
    plain = all(isinstance(each, dict) and all(type(at) is int for at in each.values()) for each in offset.values())
    return offset if plain else {}


class _Log(Protocol):
    """The folder of Spark's offset log."""

    def exists(self, name: str) -> bool: ...

    def read(self, name: str) -> bytes: ...


class SkippedOffsets:
    """Counts, of the topics that are read with `on_gap="skip"`, what was gone before a batch could read it; a batch counts once.

    Cost: nothing without such a topic; with one two small files and some requests of the brokers a batch.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._skipped: dict[int, dict[str, dict[str, int]]] = {}

    def count(self, log: _Log, batch: int) -> None:
        """Count the gaps that a batch is about to leave out; `log` is the query's, which has the batch."""
        if not _SKIPPING or not log.exists(str(batch - 1)):
            return
        found: dict[str, dict[str, int]] = {}
        ends = _logged(log.read(str(batch)))
        for topic, starts in _logged(log.read(str(batch - 1))).items():
            bounds = _SKIPPING[topic]() if topic in _SKIPPING else {}
            for partition, (first, _) in bounds.items():
                start, end = starts.get(str(partition)), ends.get(topic, {}).get(str(partition))
                if start is not None and end is not None and (gone := min(first, end) - start) > 0:
                    found.setdefault(topic, {})[str(partition)] = gone
                    _log.warning(
                        "batch %d leaves out %d offsets of partition %d of topic %r, from %d on: they are gone",
                        *(batch, gone, partition, topic, start),
                    )
        with self._lock:
            self._skipped[batch] = found

    def totals(self) -> dict[str, dict[str, int]]:
        """Return what was left out since the query was started, by topic and partition."""
        with self._lock:
            batches = list(self._skipped.values())
        found: dict[str, dict[str, int]] = {}
        for batch in batches:
            for topic, partitions in batch.items():
                mine = found.setdefault(topic, {})
                for partition, gone in partitions.items():
                    mine[partition] = mine.get(partition, 0) + gone
        return found


def _logged(content: bytes) -> dict[str, dict[str, int]]:
    """Return the offsets of all sources in a file of Spark's log, a line each."""
    found: dict[str, dict[str, int]] = {}
    for line in content.decode().splitlines()[2:]:
        for name, partitions in _places(line).items():
            found.setdefault(name, {}).update(partitions)
    return found
