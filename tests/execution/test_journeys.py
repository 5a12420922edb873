"""The journeys without a JVM: the counts are those of real runs, and none has grown. With the driver:
tests/spark/test_journeys.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.execution.journeys import JOURNEYS, Journey, trident_in_workers, windowed_in_workers
from windowing.codec import dumps, loads
from windowing.columnar.rows import decode_table

AT_MOST = {
    "windowed": (215, 28),  # here and below `values_of` of columnar/rows.py, which makes times twenty times faster
    "topology": (105, 21),  # `cleanup` after an error: three functions `abandon`, of the writer, the batch and the code
    "plain": (66, 14),
    "window": (147, 25),
    "stateful": (101, 19),  # `begin` and `_set` of topology/state.py keep what a failed call has to give back
    "trident": (165, 25),  # ColumnFold checks a step; a state need not have a close; a damaged SQLite file is named: 4
}
"""Functions and files. A change that lengthens a journey gives its reason here.

Idle keys stay in Spark's store (StoredIdleKeys): 28 functions and a file of `windowed`, two functions of `window`.
`encode_value` calls `encode_text` (codec.py): one function where a state is.
What Spark holds as one array of bytes is cut (`cut` of columnar/rows.py): one function of `windowed` and `topology`.
`in_order` (windows/queue.py) saves two of three sorts of a batch out of order: one function of `windowed` and `window`.
`columns_of` (schema/rows.py) reads records at C speed: one function of `window`.
The calls of many threads take turns (`Turns.enter`, `leave` and `runs_loop` of local/loop.py): two functions of `plain`, `window`
and `stateful`, with one that is gone (`is_list`).
Rows of `run_batch` give all tasks one watermark (`WaterMarkEventGenerator.merge`): one function of `window`.

A task on Spark sends its metrics at the end of its turn (execution/metrics.py, spark/metrics.py): two files.
`Shipped` is in a file of its own (spark/shipping.py), and no longer between the operator's functions: a file of `windowed`.
"""
LANDMARKS = {
    "windowed": [
        "Packer.pack",
        "TaskProcessor.handleInputRows",
        "WindowManager.load",
        "BoltRunner.run",
        "Encoder.table",
    ],
    "topology": ["SpoutStage.pack", "StageTaskTurn.run", "BoltBatch.take", "StageWriter.emit_all"],
    "plain": ["SpoutTask.emit", "BoltTask.arrive", "Acker.ack_all", "SpoutPending.acked_all"],
    "window": ["WindowedBoltTask.arrive", "BoltRunner.run", "WindowedBoltTask.expired", "Acker.ack_all"],
    "stateful": ["StatefulBoltTask._called", "CheckpointTask.take", "MemoryStateStore.commit", "Acker.ack_all"],
    "trident": ["TridentSpoutStage.pack", "FilterProcessor._one", "SqliteMap.multi_put", "TridentBatchStage.pack"],
}


@pytest.mark.parametrize("name", JOURNEYS)
def test_a_journey_passes_its_landmarks_and_has_not_grown(name: str) -> None:
    journey = JOURNEYS[name]()
    called = {function for _, function in journey.steps}
    assert [each for each in LANDMARKS[name] if each not in called] == []
    functions, files = AT_MOST[name]
    assert (len(journey.steps) <= functions, len(journey.files) <= files) == (True, True), (
        f"{journey}\n{journey.table()}"
    )


def test_functions_count_once_with_their_nested_functions_and_without_class_bodies() -> None:
    journey = Journey()
    with journey.traced():
        loads(dumps({"a": [1, 2]}), "data")
        loads(dumps({"a": [1, 2]}), "data")
    names = [function for _, function in journey.steps]
    assert journey.files == ["codec.py"]
    assert len(names) == len(set(names))
    assert not [name for name in names if "<" in name]
    outside = Journey()
    with outside.traced():
        Path("a") / "b"
    assert str(outside) == "0 functions in 0 files"


def test_the_second_batch_continues_with_the_state_of_the_first() -> None:
    outputs: list[Any] = []
    windowed_in_workers(outputs)
    shown = [
        [tuple(row) for frame in frames for row in frame[frame["_stream"] == 0][["_0_0", "_0_1", "_0_2"]].to_numpy()]
        for frames in outputs
    ]
    first = [("a", 1, 0.5), ("b", 1, 1.5), ("a", 2, 2.5), ("b", 1, 1.5)]
    second = [("a", 2, 2.75), ("a", 2, 1.75), ("b", 2, 2.75), ("a", 1, 1.0), ("b", 2, 2.75)]
    assert [sorted(rows) for rows in shown] == [sorted(first), sorted(second)]


def test_a_trident_batch_commits_its_state_and_emits_the_new_values(tmp_path: Path) -> None:
    batches: list[Any] = []
    trident_in_workers(tmp_path, batches)
    counts = [
        sorted(
            tuple(row.values()) for each in rows if each.kind == "out" for row in decode_table(each.data).to_pylist()
        )
        for rows in batches
    ]
    assert counts == [[("a", 2), ("b", 2)], [("a", 4), ("b", 4)]]
