"""Spooled: a source without offsets, whose messages are put into a file first and read from there, so that they can be read again.

    broker --take--> messages --one transaction--> the spool (a SqliteQueue, on the disk) --confirm--> the broker forgets them
                                                      |
                                                      +--read, ack, fail--> a batch is a root, as of every queue

Laws
- The broker is told when a message is on the disk, not when its windows are done: those may be longer than a broker waits for an
  ack (docs/decisions/0038-spool-before-ack.md). What is acked late is the row in the spool.
- A message that is delivered again because its confirmation was lost is in the spool already, and known by its id: it is not put
  again. One without an id is put again.
- What cannot be put, or is no row, is not confirmed. With `on_invalid="dead"` a message that is no row is among the spool's dead.
- The spool remembers the last million ids, and the position of a source that has one (`after`).

Any source fits that hands over messages until they are confirmed: RabbitMQ's queues (rabbit.py), SQS.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from windowing.codec import encode_value
from windowing.errors import ConfigError, SourceError, quote
from windowing.queues.messages import BadMessage, row_of_json
from windowing.queues.spout import Offsets
from windowing.queues.sqlite_queue import SqliteQueue
from windowing.schema.types import Schema

__all__ = [
    "Message",
    "MessageSource",
    "Spooled",
]


_REMEMBERED = 1_000_000
_PER_TAKE = 1_000


class Message(NamedTuple):
    """A message of a broker. body: a JSON object (queues/messages.py). id: tells it from every other one, None if nothing does."""

    body: bytes
    id: str | None


class MessageSource(ABC):
    """Subclass it for a broker: hold its address, no connection, for copies are sent to other processes.

    fields: the columns of the rows, as in `output="word string, n long"`. name: how errors call it.
    """

    fields: str = ""
    name: str = ""

    @abstractmethod
    def take(self, limit: int, after: str | None) -> Sequence[Message]:
        """Return what there is now, at most so many, in order; what is not confirmed may come again. after: the id of the last
        message that is in the spool, for a source that begins behind it.
        """

    def backlog(self) -> int | None:
        """Return about how many messages wait now, or more; None for a source that does not know it. So many are put into the spool
        before a batch is made of what is there: without it, whoever sends faster than they are put holds up every batch.
        """
        return None

    @abstractmethod
    def confirm(self) -> None:
        """Let the broker forget all that was taken: it is on the disk."""

    def close(self) -> None:  # noqa: B027 - a source may leave it out
        """Give back all that was taken and not confirmed, and end the connection; the next call makes another."""


class Spooled(SqliteQueue):
    """The messages of a source, by a spool at `log` (a local path, which all workers open; made when it is not there).

    partitions, max_rows, max_attempts: as of a SqliteQueue. on_invalid="dead": messages that are no rows are put among the dead.
    Raises ConfigError for a spool of another source or of other fields; like every method SourceError for a broker that cannot be
    reached or refuses, and what a SqliteQueue raises.
    """

    def __init__(
        self,
        source: MessageSource,
        *,
        log: str | Path,
        partitions: int = 1,
        max_rows: int | None = None,
        max_attempts: int = 5,
        on_invalid: str = "raise",
    ) -> None:
        if not isinstance(source, MessageSource):
            raise ConfigError(
                f"Spooled takes a MessageSource, got {quote(source)}; a PartitionedSpout needs no spool: give it as it is"
            )
        if on_invalid not in ("raise", "dead"):
            raise ConfigError(f"on_invalid of a Spooled is 'raise' or 'dead', got {quote(on_invalid)}")
        super().__init__(
            log, Schema.parse(source.fields).ddl, partitions=partitions, max_rows=max_rows, max_attempts=max_attempts
        )
        self._source, self._on_invalid = source, on_invalid
        with self._transaction() as (db, facts):
            if facts.setdefault("source", source.name) != source.name:
                raise ConfigError(
                    f"the spool {self.path} was made for {facts['source']}, now {source.name}; give each source a log= of its own"
                )
            db.execute(
                "CREATE TABLE IF NOT EXISTS taken (n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE)"
            )

    def latest(self) -> Offsets:
        """Put what has come into the spool, and return the number that was given last, for each partition."""
        backlog = self._source.backlog()
        taken = 0
        while backlog is None or taken <= backlog:
            with self._opened() as (_, facts):
                after = facts.get("after")
            messages = self._source.take(_PER_TAKE, after)
            if not messages:
                break
            try:
                self._put(messages)
            except BaseException:
                self._source.close()
                raise
            self._source.confirm()
            taken += len(messages)
        return super().latest()

    def close(self) -> None:
        """End the connection to the broker."""
        self._source.close()

    def _put(self, messages: Sequence[Message]) -> None:
        rows: list[tuple[int, bytes]] = []
        odd: list[tuple[str, bytes]] = []
        with self._transaction() as (db, facts):
            for message in messages:
                if message.id is not None and not _is_new(db, message.id):
                    continue
                try:
                    rows.append((1, encode_value(row_of_json(message.body, self._schema))))
                except BadMessage as problem:
                    if self._on_invalid == "raise":
                        raise SourceError(
                            f"message {quote(message.id)} of {self._source.name} is no row of {self.fields}: {problem}; declare "
                            'what its fields are, or have such messages put among the dead by on_invalid="dead"; it stays in the '
                            "queue"
                        ) from problem
                    odd.append((str(problem), encode_value((message.body.decode(errors="replace"),))))
            self._append(db, facts, rows)
            self._to_dead_letters(db, facts, odd)
            if messages[-1].id is not None:
                facts["after"] = messages[-1].id
            db.execute("DELETE FROM taken WHERE n <= (SELECT max(n) FROM taken) - ?", (_REMEMBERED,))


def _is_new(db: sqlite3.Connection, id: str) -> bool:
    return db.execute("INSERT OR IGNORE INTO taken (id) VALUES (?)", (id,)).rowcount == 1
