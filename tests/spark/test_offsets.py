"""Offsets of sources: the lag in a progress report, and the offsets of a topic removed before a batch read them. No JVM."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from windowing.execution.metrics import RunMetrics, samples
from windowing.spark import offsets
from windowing.spark.offsets import SkippedOffsets, lag_of, skip_gaps_of


def progress(*sources: tuple[Any, Any]) -> Any:
    return SimpleNamespace(sources=[SimpleNamespace(endOffset=end, latestOffset=latest) for end, latest in sources])


def test_the_lag_of_a_partition_is_the_latest_offset_minus_the_end_of_the_batch():
    topic = json.dumps({"flights": {"0": 41, "1": 7, "2": 3}}), json.dumps({"flights": {"0": 50, "1": 7, "3": 9}})
    queue = (
        json.dumps({"spout": "words", "from": {"0": 1}, "to": {"0": 4}}),
        json.dumps({"spout": "words", "to": {"0": 9}}),
    )
    others = [(None, None), ("-", "-"), ('{"logOffset": 3}', '{"logOffset": 3}'), ("[1]", "[1]"), (topic[0], "None")]
    others.append(('{"shards": {"0": "49590"}}', '{"shards": {"0": "49591"}}'))
    assert lag_of(progress(topic, queue, *others)) == {"flights": {"0": 9, "1": 0}, "words": {"0": 5}}


def test_sources_with_the_same_name_are_numbered():
    one, other = (json.dumps({"flights": {"0": at}}) for at in (9, 7))
    assert lag_of(progress((one, one), (other, one))) == {"flights": {"0": 0}, "flights (2)": {"0": 2}}


class Log:
    """Spark's offset log of a query that reads files, one topic twice, and another topic of the same name."""

    def __init__(self, *batches: dict[str, int]) -> None:
        self.batches = batches

    def exists(self, name: str) -> bool:
        return 0 <= int(name) < len(self.batches)

    def read(self, name: str) -> bytes:
        lines = [
            "v1",
            '{"batchWatermarkMs": 0}',
            '{"logOffset": 2}',
            json.dumps({"flights": self.batches[int(name)]}),
            json.dumps({"flights": self.batches[int(name)]}),
            json.dumps({"flights": {"0": 10 * int(name)}}),
            "-",
        ]
        return "\n".join(lines).encode()


@pytest.fixture(autouse=True)
def skipping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "_SKIPPING", {})


class Plan:
    """The part of a logical plan that locates a source; any other method returns the plan itself."""

    def __init__(self, kind: str, servers: str | None = None, sources: Sequence[Plan] = ()) -> None:
        self.kind, self.servers, self.sources = kind, servers, sources

    def __getattr__(self, name: str) -> Callable[[], Plan]:
        return lambda: self

    def getSimpleName(self) -> str:  # noqa: N802
        return self.kind

    def isStreaming(self) -> bool:  # noqa: N802
        return self.kind != "LocalRelation"

    def size(self) -> int:
        return len(self.sources)

    def apply(self, number: int) -> Plan:
        return self.sources[number]

    def get(self, option: str) -> str | None:
        return self.servers


@pytest.fixture
def query() -> Any:
    files, other = Plan("StreamingRelation"), Plan("StreamingRelationV2")
    here, there = (Plan("StreamingRelationV2", f"{host}:9092") for host in ("h1", "h2"))
    leaves = Plan("Leaves", sources=(Plan("LocalRelation"), files, here, here, there, other))
    return SimpleNamespace(_jdf=leaves)


def test_skipped_offsets_are_counted_once_and_only_up_to_the_end_of_the_batch(
    query: Any, caplog: pytest.LogCaptureFixture
) -> None:
    end = {"0": 30, "1": 20, "2": 30}
    log = Log({"0": 10, "1": 10, "2": 10}, {"0": 20, "1": 20, "2": 20}, {**end, "3": 6}, end)  # 3 is new, then gone
    gone = SkippedOffsets()
    gone.read_by(query)
    gone.count(log, 1)
    assert gone.totals() == {}, "nobody asked for it"
    skip_gaps_of("h1:9092", "flights", lambda: {0: (15, 40), 1: (11, 20), 2: (25, 40), 3: (5, 6)})
    skip_gaps_of("h2:9092", "flights", lambda: {0: (4, 40)})
    skip_gaps_of("h3:9092", "flights", lambda: {0: (1000, 2000)})
    gone.read_by(query)
    for batch in (0, 1, 1, 2, 3):  # batch 1 is replayed; batch 0 begins with the earliest offset
        gone.count(log, batch)
    assert gone.totals() == {"flights": {"0": 5, "1": 1, "2": 10 + 5}, "flights (2)": {"0": 4}}
    assert "batch 1 leaves out 5 offsets of partition 0 of topic 'flights' at h1:9092, from 10 on" in caplog.text


def test_batches_without_skipped_offsets_take_no_memory(query: Any) -> None:
    skip_gaps_of("h1:9092", "flights", lambda: {0: (15, 40)})
    gone = SkippedOffsets()
    gone.read_by(query)
    for batch, log in ((1, Log({"0": 10}, {"0": 20})), (1, Log({"0": 15}, {"0": 20})), (1, Log({"0": 20}, {"0": 30}))):
        gone.count(log, batch)
    assert gone.totals() == {}, "the batch was replayed without a gap"
    for batch in range(2, 100):
        gone.count(Log(*({"0": 10 * (number + 1)} for number in range(batch + 1))), batch)
    assert len(gone._skipped) == 1


def test_skipped_offsets_of_a_recreated_topic_are_those_at_the_planning_of_the_batch(
    query: Any, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log({"0": 10, "1": 10}, {"0": 4, "1": 20}, {"0": 9, "1": 20})
    skip_gaps_of("h1:9092", "flights", lambda: {0: (1, 40), 1: (0, 40)})
    gone = SkippedOffsets()
    gone.read_by(query)
    for batch in (1, 1, 2):
        gone.count(log, batch)
    assert gone.totals() == {"flights": {"0": 3}}
    sentence = "leaves out 3 offsets of partition 0 of topic 'flights' at h1:9092, from 1 on: the topic was made anew"
    assert sentence in caplog.text


def test_lag_and_skipped_offsets_are_samples_by_source_and_partition():
    run = RunMetrics(name="t", at_ms=0, tasks=(), lag={"flights": {"1": 7, "0": 9}}, skipped={"flights": {"0": 5}})
    assert [(each.metric.name, each.labels, each.value) for each in samples(run)] == [
        ("lag_offsets", ("t", "flights", "0"), 9),
        ("lag_offsets", ("t", "flights", "1"), 7),
        ("skipped_offsets", ("t", "flights", "0"), 5),
    ]
    assert RunMetrics.of(json.loads(json.dumps(run.plain()))) == run
