"""StoredTask: the metadata of a windowed task, between two turns: its executor without its tuples, and the chunks that hold them.

    8 bytes: size of the head | head: format, chunks, next_id, next_number, seen | executor, as it dumped itself

The executor stays bytes until the rows that it names were read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from windowing.errors import CorruptStateError
from windowing.spark.codec import dumps, loads
from windowing.spark.state import Chunk

__all__ = ["StoredTask"]

STATE_FORMAT = 1


@dataclass(slots=True)
class StoredTask:
    """The metadata of a task: the executor without its tuples, and the list of chunks that hold them.

    seen: the message ids of a bolt with message_id=, as `Deduplicator.plain` has them.
    """

    executor: bytes | None
    chunks: list[Chunk]
    next_id: int
    next_number: int
    seen: list[Any] = field(default_factory=list)

    @classmethod
    def empty(cls) -> StoredTask:
        return cls(None, [], 0, 0)

    @classmethod
    def of(cls, body: bytes, what: str) -> StoredTask:
        size = int.from_bytes(body[:8], "big")
        head = loads(body[8 : 8 + size], what)
        if head["format"] != STATE_FORMAT:
            raise CorruptStateError(
                f"{what} has format {head['format']}, this library reads {STATE_FORMAT}; nothing was reset"
            )
        chunks = [Chunk.of(each) for each in head["chunks"]]
        return cls(body[8 + size :], chunks, head["next_id"], head["next_number"], head.get("seen", []))

    def body(self) -> bytes:
        head = dumps(
            {
                "format": STATE_FORMAT,
                "chunks": [chunk.plain() for chunk in self.chunks],
                "next_id": self.next_id,
                "next_number": self.next_number,
                **({"seen": self.seen} if self.seen else {}),
            }
        )
        return len(head).to_bytes(8, "big") + head + (self.executor or b"")
