"""Queues of servers as sources of a Trident topology in one process: killed at any step, each message counts once and is acked."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pika
import pytest
import redis

from tests.dying import in_a_child
from tests.local.test_trident_sources import ROWS, counting
from tests.services.conftest import address, empty
from windowing.errors import SourceError
from windowing.local import TridentCluster, VirtualClock, run_trident
from windowing.queues import PartitionedSpout, RabbitQueue, RedisStream, Root, Spooled
from windowing.stores import MemoryStore, SqliteStore

NAME = "trident"
FIELDS = "k string, n long"


@pytest.fixture(params=["redis", "classic", "stream"])
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param
    remove(request.param)


def remove(kind: str) -> None:
    if kind == "redis":
        empty("redis")
        return
    with pika.BlockingConnection(pika.URLParameters(address("rabbitmq"))) as connection:
        connection.channel().queue_delete(NAME)


def put(kind: str, rows: list[tuple[str, int]]) -> None:
    """Put rows behind those of the queue, which is made where it is not there."""
    if kind == "redis":
        with redis.Redis.from_url(address("redis")) as db:
            for k, n in rows:
                db.xadd(NAME, {"k": k, "n": n})
        return
    with pika.BlockingConnection(pika.URLParameters(address("rabbitmq"))) as connection:
        channel = connection.channel()
        channel.queue_declare(NAME, durable=True, arguments={"x-queue-type": kind})
        channel.confirm_delivery()
        for k, n in rows:
            properties = pika.BasicProperties(message_id=f"{k}-{n}", delivery_mode=2)
            channel.basic_publish("", NAME, json.dumps({"k": k, "n": n}).encode(), properties)


def step_of(steps: int | None) -> Any:
    left = [steps]

    def step() -> None:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] = None if left[0] is None else left[0] - 1

    return step


def opened(kind: str, folder: Path, step: Any = lambda: None) -> Any:
    """Return the queue, whose acks are steps."""
    base: Any = RedisStream if kind == "redis" else Spooled

    class Dying(base):  # type: ignore[misc]
        def ack(self, root: Root) -> None:
            step()
            super().ack(root)
            step()

    if kind == "redis":
        return Dying(address("redis"), NAME, FIELDS, partitions=2, max_rows=4)
    source = RabbitQueue(address("rabbitmq"), NAME, FIELDS, stream=kind == "stream")
    return Dying(source, log=folder / "spool.db", partitions=2, max_rows=4)


def all_there(kind: str, queue: PartitionedSpout, count: int) -> None:
    """Wait for what was put: a stream hands it over a little later."""
    deadline = time.monotonic() + 60
    while max(queue.latest().values()) < count:
        assert time.monotonic() < deadline


def killed_run(kind: str, folder: Path, count: int, steps: int | None) -> None:
    """Count a queue, and die at that step: around an ack, within a batch, around the write of a sink."""
    step = step_of(steps)

    def look(row: Any) -> bool:
        step()
        return True

    def write(txid: int, rows: list[Any]) -> None:
        (folder / f"{txid}.json").write_text(json.dumps(rows))
        step()

    queue = opened(kind, folder, step)
    all_there(kind, queue, count)
    given = {"state_path": folder / "records.db", "sinks": {"rows": write}, "sources": {"words": queue}}
    with TridentCluster(counting(SqliteStore(folder / "states.db"), look), clock=VirtualClock(), **given) as running:
        running.run()
        counts = {key[0]: n for key, n in running.values("state1").items()}
        (folder / "counts.json").write_text(json.dumps(counts))


@pytest.mark.crash
def test_a_process_that_is_killed_at_any_step_counts_each_message_once_and_acks_all(kind: str, tmp_path: Path) -> None:
    deaths, stride = 0, 1 if kind == "redis" else 3
    while True:
        remove(kind)
        folder = tmp_path / str(deaths)
        folder.mkdir()
        put(kind, ROWS)
        code = in_a_child(partial(killed_run, kind, folder, len(ROWS), deaths * stride))
        if code == 0:
            break
        assert code == -signal.SIGKILL
        put(kind, [("more", deaths)])
        assert in_a_child(partial(killed_run, kind, folder, len(ROWS) + 1, None)) == 0
        assert json.loads((folder / "counts.json").read_text()) == {"k0": 5, "k1": 5, "more": 1}
        rows = [tuple(row) for file in folder.glob("[0-9]*.json") for row in json.loads(file.read_text())]
        assert Counter(rows) == {(n, k): 1 for k, n in [*ROWS, ("more", deaths)]}
        assert len(opened(kind, folder)) == 0
        deaths += 1
    assert deaths * stride > 15


def test_a_queue_that_vanishes_while_it_is_read_ends_the_run_and_nothing_is_acked(kind: str, tmp_path: Path) -> None:
    put(kind, ROWS)
    queue = opened(kind, tmp_path)
    looked: list[int] = []

    def look(row: Any) -> bool:
        if not looked:
            remove(kind)
        looked.append(row.n)
        return True

    topology = counting(MemoryStore(), look, 1)
    with pytest.raises(SourceError) as problem:
        run_trident(topology, sources={"words": queue}, clock=VirtualClock())
    said = "is not the one that consumer 'windowing' has read" if kind == "redis" else "it is not there"
    assert said in str(problem.value)
    assert address("redis" if kind == "redis" else "rabbitmq").split(":")[2].partition("@")[0] not in str(problem.value)
