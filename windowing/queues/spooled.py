"""Spooled: a replayable source from a broker without offsets; its messages are first written to a local file and read from there.

    broker --take--> messages --one transaction--> the spool (a SqliteQueue, on the disk) --confirm--> the broker deletes them
                                                      |
                                                      +--read, ack, fail--> a batch is a root, as of every queue

Laws
- A message is confirmed to the broker once it is durable in the spool, not when its windows are done: a window may be longer than a
  broker waits for an ack (docs/decisions/0038-spool-before-ack.md). The row in the spool is acked when its windows are done.
- A message that is delivered again because its confirmation was lost is recognized by its id and not stored again. A message
  without an id is stored again.
- A message that cannot be stored, or is not a valid row, is not confirmed. With `on_invalid="dead"` a message that is not a valid
  row becomes a dead letter of the spool.
- The spool stores the last million ids, and the position of a source that has one (`after`).

A source of any broker that keeps messages until they are confirmed can be written: queues of RabbitMQ (rabbit.py), SQS.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from windowing.codec import encode_value
from windowing.errors import ConfigError, SourceError, quote
from windowing.queues.spout import Offsets, one_of
from windowing.queues.sqlite_queue import SqliteQueue
from windowing.schema.checks import spelled
from windowing.schema.messages import BadMessage, row_of_json
from windowing.schema.types import Schema

_REMEMBERED = 1_000_000
_PER_TAKE = 1_000


class Message(NamedTuple):
    """A message of a broker. body: a JSON object (windowing/schema/messages.py). id: a unique one, None or "" if there is none."""

    body: bytes
    id: str | None


class MessageSource(ABC):
    """Base class for a broker. Store its address and no connection: copies of the object are sent to other processes.

    fields: the columns of the rows, as in `output="word string, n long"`. name: its name in error messages.
    """

    fields: str = ""
    name: str = ""

    def is_named(self, name: str) -> bool:
        """Return whether a spool that was made for a source of this name is one of this source."""
        return name == self.name

    @abstractmethod
    def take(self, limit: int, after: str | None) -> Sequence[Message]:
        """Return the messages that wait now, at most `limit`, in order. Unconfirmed messages may be returned again.

        after: the id of the last message in the spool, for a source that continues behind it.
        """

    def backlog(self) -> int | None:
        """Return about how many messages wait now, rather too many than too few; None if the source cannot count.

        Before a batch begins, this many messages are moved to the spool. With None the batch waits until `take` returns no message,
        so a fast producer can delay every batch.
        """
        return None

    @abstractmethod
    def confirm(self) -> None:
        """Confirm all taken messages to the broker; they are durable in the spool."""

    def close(self) -> None:  # noqa: B027 - optional
        """Return the taken, unconfirmed messages to the broker and close the connection; the next call connects again."""


class Spooled(SqliteQueue):
    """The messages of a source, through a spool file at `log`: a local path that all workers open; created if it does not exist.

    partitions, max_rows, max_attempts: as of a SqliteQueue. on_invalid="dead": messages that are not valid rows become dead
    letters.

    Raises ConfigError for the spool of another source or of other fields. Every method raises SourceError for a broker that cannot
    be reached or refuses, and the errors of a SqliteQueue.
    """

    @spelled
    def __init__(
        self,
        source: MessageSource,
        *,
        log: str | Path,
        partitions: int = 1,
        max_rows: int | None = None,
        max_attempts: int = 5,
        on_invalid: Literal["raise", "dead"] = "raise",
    ) -> None:
        if not isinstance(source, MessageSource):
            raise ConfigError(
                f"Spooled takes a MessageSource, got {quote(source)}; a PartitionedSpout needs no spool: give it as it is"
            )
        self._on_invalid = one_of("on_invalid", "Spooled", on_invalid, ("raise", "dead"))
        super().__init__(
            log, Schema.parse(source.fields).ddl, partitions=partitions, max_rows=max_rows, max_attempts=max_attempts
        )
        self._source = source
        with self._transaction() as (db, facts):
            if not source.is_named(facts.setdefault("source", source.name)):
                raise ConfigError(
                    f"the spool {self.path} was made for {facts['source']}, now {source.name}; give each source a log= of its own"
                )
            db.execute(
                "CREATE TABLE IF NOT EXISTS taken (n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE)"
            )

    def latest(self) -> Offsets:
        """Move the waiting messages to the spool, and return the number assigned last, for each partition."""
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
        """Close the connection to the broker."""
        self._source.close()

    def _put(self, messages: Sequence[Message]) -> None:
        rows: list[tuple[Any, bytes]] = []
        odd: list[tuple[Any, bytes]] = []
        with self._transaction() as (db, facts):
            for message in messages:
                if not isinstance(message.id, str | None):
                    raise SourceError(
                        f"a message of {self._source.name} has the id {quote(message.id)}, wanted text; write "
                        "Message(body, str(id)), and None where the broker gives no id"
                    )
                if message.id:
                    new = db.execute("INSERT OR IGNORE INTO taken (id) VALUES (?)", (message.id,)).rowcount
                    if not new:
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
            self._append(db, facts, odd, "dead")
            if messages[-1].id:
                facts["after"] = messages[-1].id
            db.execute("DELETE FROM taken WHERE n <= (SELECT max(n) FROM taken) - ?", (_REMEMBERED,))
