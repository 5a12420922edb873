"""RabbitQueue: a MessageSource that reads a RabbitMQ queue (classic or quorum) or stream (pika, extra `rabbitmq`).

    queue     basic_consume, at most one page unacked --> take;  basic_ack --> confirm;  a closed connection requeues the unacked
    stream    basic_consume from `x-stream-offset` --> take;     no acks: the spool stores the offset

Laws
- A message is acked only by `confirm`. A taken, unconfirmed message is delivered again on the next connection or after `close`.
- The id of a message is its property `message_id`, set by the publisher; in a stream it is the offset.
- If the retention of a stream has removed unread messages, SourceError is raised, or with `on_gap="skip"` a warning is logged. A
  stream that ends before the offset that was read raises SourceError: it was deleted and declared again, and would deliver nothing
  until it is as long as the previous one.
- This class never declares, purges or deletes a queue. Checking its type consumes no message.

The body of a message is a JSON object. Cost: three round trips for each page of 1,000 messages, and one to read the backlog.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, TypeVar

import pika
from pika import exceptions as amqp
from pika.adapters.utils.connection_workflow import AMQPConnectorException

from windowing.errors import ConfigError, SourceError, printable, quote
from windowing.queues.spooled import Message, MessageSource
from windowing.queues.spout import one_of
from windowing.schema.checks import spelled
from windowing.schema.types import Schema
from windowing.stores.remote import checked_address, masked

T = TypeVar("T")
_log = logging.getLogger("windowing.queues")
_PAGE = 1_000
_STREAM_QUIET_S = 0.3
_STREAM_LAST_S = 1.0
_STREAM_FIRST_S = 5.0
"""Seconds to wait for the first message of a stream whose message count says there are more; a busy server can take this long."""
_LEAST_HEARTBEAT_S = 5
_NOT_IMPLEMENTED, _PRECONDITION_FAILED, _ACCESS_REFUSED = 540, 406, 403
_ADDRESS = re.compile(r"(amqps?://)(?:[^/\s]*@)?([^?\s]*)(?:\?.*)?\Z", re.DOTALL)
_OFFSET = "x-stream-offset"
_REFUSED = (amqp.ProbableAuthenticationError, amqp.AuthenticationError, amqp.ProbableAccessDeniedError)
_LOST = (amqp.AMQPConnectionError, amqp.ChannelWrongStateError, amqp.StreamLostError, amqp.ConnectionWrongStateError)
_UNREAD = re.compile(r"Stream connection lost: (ValueError|OverflowError)\(")
"""pika ends the connection with these when it decodes a time in a header that Python has not; it says so in text only."""
_REASONS = {
    _ACCESS_REFUSED: "the server refuses who asks: {}; give a user with the right to read it",
    404: "it is not there: {}; declare it, or give the name of one that is (queue and virtual host, the path of the URL)",
    405: "it is somebody else's, and exclusive: {}; give the name of a queue that several may read",
}


def _place(name: str) -> str:
    return _ADDRESS.sub(r"\1\2", name)


class RabbitQueue(MessageSource):
    """The queue `queue` on the server at `url` (amqp://user:password@host:5672/%2F, amqps://); pass it to `Spooled`.

    fields: the fields of the JSON bodies. stream: the queue has the type `stream`; it is read from its first message.
    on_gap="skip": messages of a stream that retention removed before they were read are skipped, and a warning states how many.
    patience_s: seconds to wait for a connection and for an answer; a server that is silent is given up after at most three times as
    long (or 15 s) and 15 s. A `heartbeat=` of the URL is kept.

    Raises ConfigError for an invalid address; SourceError for a server that cannot be reached, for wrong credentials, and for a
    queue that does not exist or is exclusive to another connection.
    """

    @spelled
    def __init__(
        self,
        url: str,
        queue: str,
        fields: str,
        *,
        stream: bool = False,
        on_gap: Literal["raise", "skip"] = "raise",
        patience_s: float = 30.0,
    ) -> None:
        if not isinstance(queue, str) or not queue:
            raise ConfigError(f"the queue of a RabbitQueue is a name, got {quote(queue)}")
        checked_address(url, patience_s, "amqp://user:password@host:5672/%2F", "a RabbitQueue")
        self._on_gap = one_of("on_gap", "RabbitQueue", on_gap, ("raise", "skip"))
        self.fields, self.queue, self._url = Schema.parse(fields).ddl, queue, url
        self._stream, self._patience_s = stream, patience_s
        self.name = f"queue {queue!r} of {masked(url).partition('?')[0]}"  # the options of TLS may hold a password
        self._parameters()
        self._connection: Any = None
        self._channel: Any = None
        self._last: int | None = None
        self._silent_at: int | None = None
        self._count = 0
        self._is_known = False
        is_stream = self._with_connection(self._is_stream)
        self.close()
        if is_stream != self._stream:
            what = "is a stream; read it with" if is_stream else "is no stream; read it without"
            raise ConfigError(f"{self.name} {what} stream=True")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None, "_channel": None, "_last": None}

    def __repr__(self) -> str:
        return f"RabbitQueue({self.name})"

    def is_named(self, name: str) -> bool:
        """Return whether the name is that of the same queue on the same server; user and options of the address may differ."""
        return _place(name) == _place(self.name)

    def take(self, limit: int, after: str | None) -> Sequence[Message]:
        """Return the waiting messages, at most `limit`. Raises SourceError."""
        return self._with_connection(lambda: self._taken(limit, after))

    def backlog(self) -> int | None:
        """Return the number of waiting messages; for a stream, the number of all its messages. Raises SourceError."""
        return self._with_connection(self._waiting)

    def confirm(self) -> None:
        """Ack the taken messages; if the connection is lost, they are delivered again. Raises SourceError if the server refuses."""
        if self._last is None or self._stream:
            return
        with self._translated_errors(), suppress(*_LOST):
            self._channel.basic_ack(self._last, multiple=True)
            self._connection.process_data_events(0)
        self._last = None

    def close(self) -> None:
        """Close the connection; the server requeues messages that were taken and not confirmed. The next call connects again."""
        connection, self._connection, self._channel, self._last = self._connection, None, None, None
        if connection is not None:
            with suppress(amqp.AMQPError, OSError):
                connection.close()

    # -- the server ----------------------------------------------------------------------------------------------------

    def _taken(self, limit: int, after: str | None) -> list[Message]:
        waiting = self._waiting()
        if self._stream:
            return self._taken_of_stream(limit, after, waiting)
        # A prefetched message that is not read is requeued, perhaps at the end of the queue: so no more than `waiting`.
        return [] if waiting == 0 else self._read(min(limit, waiting), None)

    def _taken_of_stream(self, limit: int, after: str | None, waiting: int) -> list[Message]:
        """Return messages behind the offset `after`. waiting: the number of all messages of the stream."""
        behind = 0 if after is None else int(after) + 1
        if behind and (not self._is_known or waiting < self._count):
            self._require_same(behind)
        self._count = waiting
        has_more = waiting > behind and waiting != self._silent_at
        found = self._read(limit, behind if behind else "first", _STREAM_FIRST_S if has_more else 0.0)
        self._silent_at = None if found else waiting
        if behind and found and int(found[0].id or 0) > behind:
            self._note_gap(behind, int(found[0].id or 0))
        return found

    def _read(self, limit: int, offset: int | str | None, first_s: float = 0.0) -> list[Message]:
        """Return messages until `limit` or quiet. offset: where to start in a stream; first_s: the wait for the first one."""
        self._connect()
        until = time.monotonic() + first_s
        found: list[Message] = []
        arguments = None if offset is None else {_OFFSET: offset}
        quiet_s = _STREAM_QUIET_S if self._stream else 1.0
        self._channel.basic_qos(prefetch_count=limit)
        for method, properties, body in self._channel.consume(
            self.queue, arguments=arguments, inactivity_timeout=quiet_s
        ):
            if method is None:
                if found or time.monotonic() >= until:
                    break
                continue
            id = (properties.headers or {}).get(_OFFSET) if self._stream else properties.message_id
            self._last = method.delivery_tag
            found.append(Message(body, None if id is None else str(id)))
            if len(found) == limit:
                break
        try:
            self._channel.cancel()  # the server requeues prefetched messages that were not read
        except amqp.AMQPError as problem:
            if not self._stream or getattr(problem, "reply_code", None) != _NOT_IMPLEMENTED:
                raise
            self.close()  # a consumer of a stream cannot requeue, and loses its connection
        return found

    def _require_same(self, behind: int) -> None:
        """Raise SourceError if the stream ends before the last offset that was read: once per process, and after the count fell."""
        last = self._read(_PAGE, "last", _STREAM_LAST_S)
        if last and int(last[-1].id or 0) < behind - 1:
            raise SourceError(
                f"{self.name} ends at offset {last[-1].id}, and was read up to {behind - 1}: messages were lost, or it was made "
                "anew; begin with another log= and a new checkpoint, or name the stream that it was"
            )
        self._is_known = bool(last)

    def _note_gap(self, behind: int, goes_on: int) -> None:
        """Raise or log that unread messages were removed. Only the first offset is compared: offsets within a stream may be
        missing, because the server stores markers of its own there.
        """
        begun = self._read(1, "first", _STREAM_FIRST_S)
        first = min(int(begun[0].id or 0), goes_on) if begun else behind
        if first <= behind:
            return
        gap = (
            f"{self.name} has lost {first - behind} offsets that were not read, {behind} to {first - 1}: its retention has removed "
            "them"
        )
        if self._on_gap == "raise":
            raise SourceError(
                f"{gap}; nothing was skipped: keep messages for longer (x-max-age, x-max-length-bytes), and go on without these by "
                'on_gap="skip"'
            )
        _log.warning("%s: left out", gap)

    def _is_stream(self) -> bool:
        """Return whether the queue is a stream, without taking a message: only a stream accepts a consumer with an offset."""
        self._waiting()
        self._channel.basic_qos(prefetch_count=1)
        try:
            self._channel.basic_consume(self.queue, lambda *_: None, arguments={_OFFSET: "next"})
        except amqp.AMQPError as problem:
            if getattr(problem, "reply_code", None) != _PRECONDITION_FAILED:
                raise
            return False
        return True

    def _waiting(self) -> int:
        return int(self._channel.queue_declare(self.queue, passive=True).method.message_count)

    def _with_connection(self, call: Callable[[], T]) -> T:
        """Return `call()` on an open connection. A connection that is lost during the call is made again, once."""
        with self._translated_errors():
            try:
                self._connect()
                return call()
            except _REFUSED:
                raise
            except _LOST:
                self.close()
            self._connect()
            return call()

    def _connect(self) -> None:
        if self._connection is None or not self._connection.is_open or not self._channel.is_open:
            self.close()
            self._connection = pika.BlockingConnection(self._parameters())
            self._channel = self._connection.channel()

    def _parameters(self) -> Any:
        try:
            if not self._url.startswith(("amqp://", "amqps://")):
                raise ValueError("it begins otherwise")
            found = pika.URLParameters(self._url)
        except Exception as problem:  # pika lets exceptions of urllib and of its own asserts through
            said = printable(masked(str(problem), self._url))
            raise ConfigError(
                f"the address of {self.name} is none of AMQP: {said}; write amqp://user:password@host:5672/%2F"
            ) from None
        found.socket_timeout = found.blocked_connection_timeout = self._patience_s
        found.stack_timeout = self._patience_s + 5
        if found.heartbeat is None:  # without one, pika waits for the answer to a request without end
            # No shorter than what the spool may take to write: the server drops a client that is silent for two heartbeats.
            found.heartbeat = max(_LEAST_HEARTBEAT_S, math.ceil(self._patience_s))
        return found

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except (amqp.AMQPError, AMQPConnectorException, OSError) as problem:
            self.close()
            raise self._refused(problem) from None

    def _refused(self, problem: Exception) -> SourceError:
        said = printable(masked(str(problem) or repr(problem), self._url))
        code = getattr(problem, "reply_code", None)
        if code == _ACCESS_REFUSED and "exclusive use" in said:
            return SourceError(
                f"{self.name}: another consumer reads it alone: {said}; end that one, or give the name of a queue that several may "
                "read"
            )
        if code in _REASONS:
            return SourceError(f"{self.name}: {_REASONS[code].format(said)}")
        if isinstance(problem, _REFUSED):
            return SourceError(
                f"{self.name}: the server refuses who asks: {said}; give user, password and virtual host in the URL"
            )
        if _UNREAD.match(said):
            return SourceError(
                f"{self.name}: a message has a header that pika, the client, cannot read: {said}; it keeps those behind it in the "
                "queue, so take it out by another client, and let its publisher write whole seconds where a header is a time; what "
                "was not put into the spool is still in the queue"
            )
        if isinstance(problem, (*_LOST, AMQPConnectorException, OSError)):
            return SourceError(
                f"{self.name}: the server cannot be reached: {said}; start it, or give another URL; what was not put into the "
                "spool is still in the queue"
            )
        return SourceError(
            f"{self.name}: the server says: {said}; what was not put into the spool is still in the queue"
        )
