"""The progress of a query's sources: `lag_of` a progress report, and the Kafka offsets that were lost unread.

    offset of a topic              {"flights": {"0": 41, "1": 7}}
    offset of a PartitionedSpout   {"spout": "words", "from": {"0": 30}, "to": {"0": 41}}

A batch begins where the previous one ended in Spark's log. The offsets between that and the first offset that the topic still has
when the batch is evaluated are lost: Spark skips them (`failOnDataLoss`), and `SkippedOffsets` counts them.

A topic is identified by its brokers and its name. If a query reads topics of the same name from several brokers, its sources are
named "flights", "flights (2)" and so on, in Spark's order; the brokers of each are those in its plan.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import StreamingQueryProgress

from windowing.execution.compatibility import read_log
from windowing.spark.hadoop import Folder

_log = logging.getLogger("windowing.spark")
Bounds = Callable[[], Mapping[int, tuple[int, int]]]
"""What a topic has: of each partition [the first offset that is there, the one behind the last)."""
_SKIPPING: dict[tuple[str, str], Bounds] = {}


def skip_gaps_of(servers: str, topic: str, bounds: Bounds) -> None:
    """Count the skipped offsets of a topic in each query that reads it."""
    _SKIPPING[servers, topic] = bounds


def lag_of(progress: StreamingQueryProgress) -> dict[str, dict[str, int]]:
    """Return the number of offsets between a batch and the end of its sources, by source and partition, where both are known."""
    found: dict[str, dict[str, int]] = {}
    newest = [_places(_parsed(source.latestOffset)) for source in progress.sources]
    for number, label, name, read in _labelled(_places(_parsed(source.endOffset)) for source in progress.sources):
        latest = newest[number].get(name, {})
        behind = {part: max(0, latest[part] - at) for part, at in read.items() if part in latest}
        if behind:
            found[label] = behind
    return found


def _labelled(sources: Iterable[Mapping[str, dict[str, int]]]) -> Iterator[tuple[int, str, str, dict[str, int]]]:
    """Yield the number of a source, its unique name, its own name, and its offset."""
    times = Counter[str]()
    for number, source in enumerate(sources):
        for name, offset in source.items():
            times[name] += 1
            yield number, name if times[name] == 1 else f"{name} ({times[name]})", name, offset


def _parsed(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return None


def leaves_of(rows: DataFrame) -> list[Any]:
    """Return the sources in the plan of a DataFrame, objects of the JVM, in order."""
    leaves = rows._jdf.queryExecution().analyzed().collectLeaves()
    return list(map(leaves.apply, range(leaves.size())))


def brokers_of(rows: DataFrame) -> list[str | None]:
    """Return the brokers of each source of a query, one entry per line of Spark's log: "" for a source that is not a topic, None
    for a repeated one. Cost: some calls of the JVM.
    """
    sources = [each for each in leaves_of(rows) if each.isStreaming()]
    return [None if each in sources[:number] else _brokers(each) for number, each in enumerate(sources)]


def _brokers(source: Any) -> str:
    options = source.extraOptions() if source.getClass().getSimpleName() == "StreamingRelationV2" else {}
    return options.get("kafka.bootstrap.servers") or ""


def _places(offset: Any) -> dict[str, dict[str, int]]:
    """Return an offset by source and partition; an empty dict for an offset of another kind."""
    if not isinstance(offset, dict):
        return {}
    if "spout" in offset:
        offset = {str(offset["spout"]): offset.get("to")}
    plain = all(isinstance(each, dict) and all(type(at) is int for at in each.values()) for each in offset.values())
    return offset if plain else {}


class SkippedOffsets:
    """Counts the lost offsets of topics that are read with `on_gap="skip"`; a batch counts once.

    Cost: nothing without such a topic; otherwise two small files and some requests to the brokers per batch.
    """

    def __init__(self) -> None:
        self._brokers: Sequence[str | None] = ()
        self._lock = threading.Lock()
        self._skipped: dict[int, dict[str, dict[str, int]]] = {}

    def read_by(self, rows: DataFrame) -> bool:
        """Record the brokers of a query's topics, before its start. Return whether it reads a topic whose skipped offsets count."""
        self._brokers = brokers_of(rows) if _SKIPPING else ()
        return any(self._brokers)

    def count(self, log: Folder, batch: int) -> None:
        """Count the gaps that a batch is about to skip; `log`: the query's offset log, which has the batch."""
        if not log.exists(str(batch - 1)):
            return
        found: dict[str, dict[str, int]] = {}
        before, ends = (list(map(_places, read_log(log, number)[1:])) for number in (batch - 1, batch))
        once = ({} if brokers is None else each for each, brokers in zip(before, self._brokers, strict=False))
        for number, label, topic, starts in _labelled(once):
            servers = self._brokers[number]
            bounds = _SKIPPING.get((servers or "", topic), dict)()
            for partition, (first, _) in bounds.items():
                start, end = starts.get(str(partition)), ends[number].get(topic, {}).get(str(partition))
                if start is None or end is None:
                    continue
                why, begins, gone = "they are gone", start, min(first, end) - start
                if end < start:  # another topic of this name: Spark continues at its end
                    why = f"the topic was made anew, and the one before was read up to {start}"
                    begins, gone = first, end - first
                if gone > 0:
                    found.setdefault(label, {})[str(partition)] = gone
                    _log.warning(
                        "batch %d leaves out %d offsets of partition %d of topic %r at %s, from %d on: %s",
                        *(batch, gone, partition, topic, servers, begins, why),
                    )
        with self._lock:
            if found or batch in self._skipped:  # most batches have no gap, and a query makes millions of them
                self._skipped[batch] = found

    def totals(self) -> dict[str, dict[str, int]]:
        """Return the number of skipped offsets since the start of the query, by topic and partition."""
        with self._lock:
            batches = list(self._skipped.values())
        found: dict[str, dict[str, int]] = {}
        for batch in batches:
            for topic, partitions in batch.items():
                mine = found.setdefault(topic, {})
                for partition, gone in partitions.items():
                    mine[partition] = mine.get(partition, 0) + gone
        return found
