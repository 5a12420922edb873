"""Queues of servers as sources of a local Trident topology: each message counts once and is acked, also after kills."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pika
import pytest
import redis

from tests.dying import in_a_child
from tests.services.conftest import address, empty
from tests.trident_on_queues import ROWS, assert_counted_once, counted_run, counting, dying
from windowing.errors import SourceError
from windowing.local import VirtualClock, run_trident
from windowing.queues import PartitionedSpout, RabbitQueue, RedisStream, Spooled
from windowing.stores import MemoryStore

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
    """Append rows to the queue, which is created if it does not exist."""
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


def opened(kind: str, folder: Path, step: Any = lambda: None) -> Any:
    """Return the queue; each of its acks is a step at which the process can be killed."""
    made = dying(RedisStream if kind == "redis" else Spooled, step)
    if kind == "redis":
        return made(address("redis"), NAME, FIELDS, partitions=2, max_rows=4)
    source = RabbitQueue(address("rabbitmq"), NAME, FIELDS, stream=kind == "stream")
    return made(source, log=folder / "spool.db", partitions=2, max_rows=4)


def wait_for_messages(kind: str, queue: PartitionedSpout, count: int) -> None:
    """Wait until the messages can be read: a stream delivers them with a delay."""
    deadline = time.monotonic() + 60
    while max(queue.latest().values()) < count:
        assert time.monotonic() < deadline


def filled(kind: str, folder: Path, count: int, step: Callable[[], None]) -> Any:
    queue = opened(kind, folder, step)
    wait_for_messages(kind, queue, count)
    return queue


@pytest.mark.crash
def test_each_message_counts_once_and_is_acked_if_the_process_is_killed_at_any_step(kind: str, tmp_path: Path) -> None:
    deaths, stride = 0, 1 if kind == "redis" else 3
    while True:
        remove(kind)
        folder = tmp_path / str(deaths)
        folder.mkdir()
        put(kind, ROWS)
        code = in_a_child(partial(counted_run, partial(filled, kind, folder, len(ROWS)), folder, deaths * stride))
        if code == 0:
            break
        assert code == -signal.SIGKILL
        put(kind, [("more", deaths)])
        assert in_a_child(partial(counted_run, partial(filled, kind, folder, len(ROWS) + 1), folder, None)) == 0
        assert_counted_once(folder, ("more", deaths))
        assert len(opened(kind, folder)) == 0
        deaths += 1
    assert deaths * stride > 15


def test_a_queue_deleted_while_it_is_read_fails_the_run(kind: str, tmp_path: Path) -> None:
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
