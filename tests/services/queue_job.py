"""The topology of tests/crash/topology_job.py on a queue of a server: `python -m tests.services.queue_job '{"folder": ...}'`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pika
import redis

from tests.crash.topology_job import FIELDS, TopologyJob, input_rows, note, run
from tests.services.conftest import address
from windowing.queues import RabbitQueue, RedisStream, Spooled

_NAMES = [field.split()[0] for field in FIELDS.split(", ")]
_PER_BATCH = 40


@dataclass(frozen=True)
class ServerJob(TopologyJob):
    """kind: redis, classic or stream."""

    kind: str
    module: ClassVar[str] = "tests.services.queue_job"

    @property
    def name(self) -> str:
        return f"killed-{self.kind}"

    @property
    def told(self) -> Path:
        return Path(self.folder, f"{self.kind}.jsonl")

    def queue(self) -> Any:
        return RecordingStream(self) if self.kind == "redis" else RecordingSpool(self)

    def fill(self) -> None:
        """Put the rows into a new queue."""
        rows = [dict(zip(_NAMES, row, strict=True)) for row in input_rows()]
        if self.kind == "redis":
            with redis.Redis.from_url(address("redis")) as db:
                db.flushdb()
                for row in rows:
                    db.xadd(self.name, row)
            return
        connection = pika.BlockingConnection(pika.URLParameters(address("rabbitmq")))
        channel = connection.channel()
        channel.queue_delete(self.name)
        channel.queue_declare(self.name, durable=True, arguments={"x-queue-type": self.kind})
        channel.confirm_delivery()
        for row in rows:
            properties = pika.BasicProperties(message_id=str(row["id"]), delivery_mode=2)
            channel.basic_publish("", self.name, json.dumps(row).encode(), properties)
        connection.close()


class RecordingStream(RedisStream):
    """A stream that records each ack before it performs it."""

    def __init__(self, job: ServerJob) -> None:
        super().__init__(address("redis"), job.name, FIELDS, consumer="killed", max_rows=_PER_BATCH)
        self.commits, self.told = str(job.checkpoint / "commits"), str(job.told)

    def ack(self, root: Any) -> None:
        note(self, root)
        super().ack(root)

    def rows(self) -> list[tuple[int]]:
        """Return the ids that are not acked: those of undelivered and of pending entries."""
        with redis.Redis.from_url(address("redis"), decode_responses=True) as db:
            entries: Any = db.xrange(self.name)
            groups: Any = db.xinfo_groups(self.name)
            if not groups:
                return [(int(fields["id"]),) for _, fields in entries]
            taken = _place(groups[0]["last-delivered-id"])
            held: Any = db.xpending_range(self.name, groups[0]["name"], "-", "+", 10_000)
            pending = {each["message_id"] for each in held}
            left = [fields for entry, fields in entries if entry in pending or _place(entry) > taken]
        return [(int(fields["id"]),) for fields in left]


def _place(entry: str) -> tuple[int, ...]:
    return tuple(map(int, entry.split("-")))


class RecordingSpool(Spooled):
    """A spool that records each ack before it performs it."""

    def __init__(self, job: ServerJob) -> None:
        source = RabbitQueue(address("rabbitmq"), job.name, FIELDS, stream=job.kind == "stream")
        super().__init__(source, log=Path(job.folder, f"{job.kind}.db"), max_rows=_PER_BATCH)
        self.commits, self.told = str(job.checkpoint / "commits"), str(job.told)

    def ack(self, root: Any) -> None:
        note(self, root)
        super().ack(root)

    def rows(self) -> list[tuple[Any, ...]]:
        self.latest()
        self.close()
        return super().rows()


if __name__ == "__main__":
    sys.exit(run(ServerJob(**json.loads(sys.argv[1]))))
