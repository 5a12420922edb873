"""How far the sources of a query are read: `lag_of` a progress report, and the offsets that a topic of Kafka had lost before.

    offset of a topic              {"flights": {"0": 41, "1": 7}}
    offset of a PartitionedSpout   {"spout": "words", "from": {"0": 30}, "to": {"0": 41}}

A batch begins where the one before it ended, by Spark's log. What lies between that and the first offset that the topic still has,
when the batch is about to be evaluated, is gone: Spark leaves it out (`failOnDataLoss`), and `SkippedOffsets` counts it.

A topic is known by its brokers and its name. A query may read topics of one name from several brokers: its sources are called
"flights", "flights (2)" and so on, in the order in which Spark has them, and the brokers of each are those that its plan names.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import StreamingQueryProgress

__all__ = [
    "SkippedOffsets",
    "brokers_of",
    "lag_of",
    "skip_gaps_of",
]


_log = logging.getLogger("windowing.spark")
Bounds = Callable[[], Mapping[int, tuple[int, int]]]
"""What a topic has: of each partition [the first offset that is there, the one behind the last)."""
_SKIPPING: dict[tuple[str, str], Bounds] = {}


def skip_gaps_of(servers: str, topic: str, bounds: Bounds) -> None:
    """Count what is left out of a topic, in each query that reads it."""
    _SKIPPING[servers, topic] = bounds


def lag_of(progress: StreamingQueryProgress) -> dict[str, dict[str, int]]:
    """Return how many offsets a batch is behind the end of its sources, by source and partition, of those that say both."""
    found: dict[str, dict[str, int]] = {}
    newest = [_places(source.latestOffset) for source in progress.sources]
    for number, label, name, read in _labelled(_places(source.endOffset) for source in progress.sources):
        latest = newest[number].get(name, {})
        behind = {part: max(0, latest[part] - at) for part, at in read.items() if part in latest}
        if behind:
            found[label] = behind
    return found


def _labelled(sources: Iterable[Mapping[str, dict[str, int]]]) -> Iterator[tuple[int, str, str, dict[str, int]]]:
    """Yield the number of a source, what it is called here, its own name, and its offset."""
    times = Counter[str]()
    for number, source in enumerate(sources):
        for name, offset in source.items():
            times[name] += 1
            yield number, name if times[name] == 1 else f"{name} ({times[name]})", name, offset


def brokers_of(rows: DataFrame) -> list[str | None]:
    """Return the brokers of each source of a query, as Spark's log has a line for each: "" for a source that is no topic, None for
    one that comes again. Cost: some calls of the JVM.
    """
    leaves = rows._jdf.queryExecution().analyzed().collectLeaves()
    sources = [each for each in map(leaves.apply, range(leaves.size())) if each.isStreaming()]
    return [None if each in sources[:number] else _brokers(each) for number, each in enumerate(sources)]


def _brokers(source: Any) -> str:
    options = source.extraOptions() if source.getClass().getSimpleName() == "StreamingRelationV2" else {}
    return options.get("kafka.bootstrap.servers") or ""


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
        self._brokers: Sequence[str | None] = ()
        self._lock = threading.Lock()
        self._skipped: dict[int, dict[str, dict[str, int]]] = {}

    def read_by(self, rows: DataFrame) -> None:
        """Learn where a query that is about to start reads its topics."""
        self._brokers = brokers_of(rows) if _SKIPPING else ()

    def count(self, log: _Log, batch: int) -> None:
        """Count the gaps that a batch is about to leave out; `log` is the query's, which has the batch."""
        if not any(self._brokers) or not log.exists(str(batch - 1)):
            return
        found: dict[str, dict[str, int]] = {}
        before, ends = (_logged(log.read(str(number))) for number in (batch - 1, batch))
        once = ({} if brokers is None else each for each, brokers in zip(before, self._brokers, strict=False))
        for number, label, topic, starts in _labelled(once):
            servers = self._brokers[number]
            bounds = _SKIPPING.get((servers or "", topic), dict)()
            for partition, (first, _) in bounds.items():
                start, end = starts.get(str(partition)), ends[number].get(topic, {}).get(str(partition))
                if start is None or end is None:
                    continue
                if end < start:  # another topic of this name: Spark goes on at its end
                    gone, begins, why = (
                        end - first,
                        first,
                        f"the topic was made anew, and the one before was read up to {start}",
                    )
                else:
                    gone, begins, why = min(first, end) - start, start, "they are gone"
                if gone > 0:
                    found.setdefault(label, {})[str(partition)] = gone
                    _log.warning(
                        "batch %d leaves out %d offsets of partition %d of topic %r at %s, from %d on: %s",
                        *(batch, gone, partition, topic, servers, begins, why),
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


def _logged(content: bytes) -> list[dict[str, dict[str, int]]]:
    """Return the offset of each source in a file of Spark's log, a line each."""
    return [_places(line) for line in content.decode().splitlines()[2:]]
