"""RabbitQueue and its spool on a real RabbitMQ: classic queues, quorum queues and streams, redelivery, kills, bad input."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.dying import in_a_child
from tests.services.conftest import address
from tests.services.proxy import Proxy
from windowing import seconds, tumbling
from windowing.errors import ConfigError, SourceError
from windowing.local import VirtualClock, run_topology
from windowing.local.router import ClusterResult
from windowing.queues import RabbitQueue, Root, Spooled
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.plan import Topology

pika = pytest.importorskip("pika")

WORDS = "word string, at long"
ROWS = [("cow", 1_000), ("moon", 9_000), ("cow", 25_000), ("moon", 3_000), ("cow", 45_000)]
COUNTS = [("cow", 10_000, 1), ("cow", 30_000, 1), ("cow", 50_000, 1), ("moon", 10_000, 2)]


@pytest.fixture(params=["classic", "quorum", "stream"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def channel() -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(address("rabbitmq")))
    made = connection.channel()
    made.queue_delete("words")
    made.confirm_delivery()
    yield made
    connection.close()


def declare(channel: Any, kind: str = "classic") -> None:
    channel.queue_declare("words", durable=True, arguments={"x-queue-type": kind})


def put(channel: Any, rows: list[tuple[Any, ...]], ids: bool = True) -> None:
    for word, at in rows:
        properties = pika.BasicProperties(message_id=f"{word}-{at}" if ids else None, delivery_mode=2)
        channel.basic_publish("", "words", json.dumps({"word": word, "at": at}).encode(), properties, mandatory=True)


def waiting(channel: Any) -> int:
    return int(channel.queue_declare("words", passive=True).method.message_count)


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Close the connections of the queues of a test."""
    yield
    while _made:
        _made.pop().close()


_made: list[RabbitQueue] = []


def queue_of(kind: str = "classic", **options: Any) -> RabbitQueue:
    _made.append(made_of(kind, **options))
    return _made[-1]


def made_of(kind: str, **options: Any) -> RabbitQueue:
    return RabbitQueue(address("rabbitmq"), "words", WORDS, stream=kind == "stream", **options)


@tumbling(seconds(10), timestamp="at", key="word", name="count", output="word string, end long, n long")
def counted(window: Any) -> Any:
    return window.key, window.end_timestamp, len(window)


def topology_of(declared: Any = counted) -> Topology:
    builder = TopologyBuilder("queued").configure({"topology.enable.message.timeouts": False})
    builder.set_spout("words", InputSpout(WORDS))
    builder.set_bolt("count", declared).global_grouping("words")
    return builder.build()


def ran(spool: Spooled, declared: Any = counted, drain: bool = True) -> ClusterResult:
    return run_topology(topology_of(declared), sources={"words": spool}, clock=VirtualClock(), drain=drain)


# -- from the broker to the spool ----------------------------------------------------------------------------------------


def test_messages_stay_in_the_spool_until_their_windows_have_expired(channel: Any, kind: str, tmp_path: Path) -> None:
    declare(channel, kind)
    put(channel, ROWS[:4])
    spool = Spooled(queue_of(kind), log=tmp_path / "spool.db", max_rows=2)
    assert ran(spool, drain=False)["count"] == []
    assert spool.rows() == ROWS[:4], "windows are open: nothing is acked"
    if kind != "stream":
        assert waiting(channel) == 0, "the broker waits for no window"
    put(channel, ROWS[4:])
    again = Spooled(queue_of(kind), log=tmp_path / "spool.db", max_rows=2)
    assert sorted(ran(again)["count"]) == COUNTS
    assert len(again) == 0
    assert ran(again)["count"] == []


def take_all(spool: Spooled, count: int) -> None:
    """Read until the spool has this number of messages: on a busy machine a stream may deliver them in parts."""
    deadline = time.monotonic() + 60
    while spool.latest() != {"0": count}:
        assert time.monotonic() < deadline, spool.latest()


def test_more_messages_than_one_page_are_read_in_order(channel: Any, kind: str, tmp_path: Path) -> None:
    declare(channel, kind)
    rows = [(f"w{n}", n) for n in range(2_300)]
    put(channel, rows)
    spool = Spooled(queue_of(kind), log=tmp_path / "spool.db")
    take_all(spool, 2_300)
    assert spool.rows() == rows
    put(channel, [("more", 1)])
    take_all(spool, 2_301)
    assert spool.rows() == [*rows, ("more", 1)]


def test_new_messages_while_the_spool_is_filled_do_not_delay_the_batch(channel: Any, tmp_path: Path) -> None:
    class Followed(RabbitQueue):
        def confirm(self) -> None:
            super().confirm()
            put(channel, [(f"more{time.monotonic_ns()}", n) for n in range(1_000)])

    declare(channel)
    put(channel, [(f"w{n}", n) for n in range(1_500)])
    spool = Spooled(Followed(address("rabbitmq"), "words", WORDS), log=tmp_path / "spool.db")
    assert spool.latest() == {"0": 2_000}, "two pages: all that waited, and no more"
    spool.close()


def test_a_stream_is_continued_after_the_last_offset_also_within_a_chunk(channel: Any) -> None:
    """A stream stores messages that arrive together as one chunk; the server sends the part after the offset."""
    declare(channel, "stream")
    fast = channel.connection.channel()  # without confirms, so that they arrive together
    for n in range(500):
        fast.basic_publish("", "words", json.dumps({"word": "cow", "at": n}).encode())
    fast.close()
    queue, deadline = queue_of("stream"), time.monotonic() + 20
    while len(queue.take(1_000, None)) < 500:
        assert time.monotonic() < deadline
    begun = queue.take(7, None)
    assert [each.id for each in begun] == [str(n) for n in range(7)]
    queue.close()
    assert [each.id for each in queue.take(1_000, begun[-1].id)] == [str(n) for n in range(7, 500)]


def test_messages_that_a_stream_delivered_beyond_a_page_are_read_again(channel: Any, tmp_path: Path) -> None:
    """On a slow machine messages arrive while the consumer is cancelled: they cannot be requeued to a stream."""

    class Greedy(RabbitQueue):
        def _connect(self) -> None:
            before = self._channel
            super()._connect()
            if self._channel is not before:
                ask = self._channel.basic_qos
                self._channel.basic_qos = lambda prefetch_count: ask(prefetch_count=10 * prefetch_count)

    declare(channel, "stream")
    rows = [(f"w{n}", n) for n in range(2_300)]
    put(channel, rows)
    spool = Spooled(Greedy(address("rabbitmq"), "words", WORDS, stream=True), log=tmp_path / "spool.db")
    take_all(spool, 2_300)
    assert spool.rows() == rows
    spool.close()


def overflow_retention(channel: Any, numbers: range) -> None:
    """Put messages into a stream until its retention has removed all but the last ones."""
    for n in numbers:
        channel.basic_publish("", "words", json.dumps({"word": "w" * 200, "at": n}).encode(), mandatory=True)


def test_messages_of_a_stream_removed_by_retention_are_an_error_or_skipped_and_logged(
    channel: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    size = {"x-max-length-bytes": 2_000, "x-stream-max-segment-size-bytes": 1_000}
    channel.queue_declare("words", durable=True, arguments={"x-queue-type": "stream", **size})
    put(channel, ROWS)
    spool = Spooled(queue_of("stream"), log=tmp_path / "spool.db")
    take_all(spool, 5)
    overflow_retention(channel, range(200))
    with pytest.raises(
        SourceError, match=r"queue 'words' of .* has lost \d+ offsets that were not read, 5 to \d+: its ret"
    ):
        spool.latest()
    assert spool.rows() == ROWS, "nothing was skipped"
    after = Spooled(queue_of("stream", on_gap="skip"), log=tmp_path / "spool.db")
    after.latest()
    shown = [at for _, at in after.rows()[5:]]
    assert shown == list(range(shown[0], 200))
    assert shown[0] > 100
    assert "offsets that were not read, 5 to" in caplog.text


@pytest.mark.parametrize("is_running", [False, True])
def test_a_recreated_stream_is_an_error(channel: Any, tmp_path: Path, is_running: bool) -> None:
    declare(channel, "stream")
    put(channel, ROWS)
    spool = Spooled(queue_of("stream"), log=tmp_path / "spool.db")
    take_all(spool, 5)
    deadline = time.monotonic() + 60
    while waiting(channel) != 5:  # a stream reports its length with a delay
        assert time.monotonic() < deadline
    assert spool.latest() == {"0": 5}
    channel.queue_delete("words")
    declare(channel, "stream")
    put(channel, ROWS[:3])
    again = spool if is_running else Spooled(queue_of("stream"), log=tmp_path / "spool.db")
    with pytest.raises(
        SourceError, match=r"ends at offset 2, and was read up to 4: messages were lost, or it was made"
    ):
        take_all(again, -1)


def test_a_redelivered_message_is_stored_once_by_its_message_id(channel: Any, tmp_path: Path) -> None:
    class Unconfirmed(RabbitQueue):
        def confirm(self) -> None:
            self.close()
            raise SourceError("the connection was lost")

    declare(channel)
    put(channel, ROWS)
    spool = Spooled(Unconfirmed(address("rabbitmq"), "words", WORDS), log=tmp_path / "spool.db")
    for _ in range(2):
        with pytest.raises(SourceError, match="the connection was lost"):
            spool.latest()
        assert spool.rows() == ROWS
    after = Spooled(queue_of(), log=tmp_path / "spool.db")
    put(channel, [("new", 1)])
    after.latest()
    assert after.rows() == [*ROWS, ("new", 1)]
    assert waiting(channel) == 0
    put(channel, ROWS[:1], ids=False)
    put(channel, ROWS[:1], ids=False)
    after.latest()
    assert after.rows() == [*ROWS, ("new", 1), ROWS[0], ROWS[0]], "without an id nobody can say that it is the same"


def test_a_lost_connection_is_opened_again(channel: Any, kind: str, tmp_path: Path) -> None:
    declare(channel, kind)
    put(channel, ROWS[:1])
    queue = queue_of(kind)
    spool = Spooled(queue, log=tmp_path / "spool.db")
    spool.latest()
    queue._connection._impl._transport._sock.shutdown(2)
    put(channel, ROWS[1:])
    spool.latest()
    assert spool.rows() == ROWS


# -- bad input -----------------------------------------------------------------------------------------------------------


def test_reading_continues_after_a_heartbeat_timeout_and_unconfirmed_messages_are_stored_once(
    channel: Any, tmp_path: Path
) -> None:
    declare(channel)
    put(channel, ROWS[:1])
    source = RabbitQueue(f"{address('rabbitmq')}?heartbeat=1", "words", WORDS)
    queue = Spooled(source, log=tmp_path / "spool.db")
    _made.append(source)
    assert queue.latest() == {"0": 1}
    put(channel, ROWS[1:2])
    taken = source.take(10, None)
    assert len(taken) == 1
    queue._put(taken)
    channel.connection.sleep(3)  # the server closes a connection after two missing heartbeats
    source.confirm()
    assert waiting(channel) == 1
    assert queue.latest() == {"0": 2}
    assert waiting(channel) == 0
    assert queue.rows() == ROWS[:2]


def test_connection_attempts_are_retried_as_the_address_says(channel: Any, tmp_path: Path) -> None:
    declare(channel)
    put(channel, ROWS)
    with Proxy(address("rabbitmq")) as proxy:
        source = RabbitQueue(f"{proxy.url}?connection_attempts=5&retry_delay=0.1", "words", WORDS)
        queue = Spooled(source, log=tmp_path / "spool.db")
        proxy.refuse = 3
        assert queue.latest() == {"0": len(ROWS)}
        source.close()
        queue = Spooled(RabbitQueue(proxy.url, "words", WORDS), log=tmp_path / "spool.db")
        proxy.refuse = 3
        with pytest.raises(SourceError, match=r"the server cannot be reached: .*; start it, or give another URL"):
            queue.latest()


def test_a_message_that_does_not_match_the_schema_is_an_error_or_a_dead_letter(channel: Any, tmp_path: Path) -> None:
    declare(channel)
    put(channel, ROWS[:2])
    channel.basic_publish("", "words", b'{"word": "cow", "at": "soon"}', pika.BasicProperties(message_id="odd"))
    put(channel, ROWS[2:])
    spool = Spooled(queue_of(), log=tmp_path / "spool.db")
    sentence = (
        r"message 'odd' of queue 'words' of amqp://\S*:\*\*\*@\S+ is no row of .*'soon'.*; declare what its fields are"
    )
    with pytest.raises(SourceError, match=sentence):
        spool.latest()
    assert spool.rows() == []
    assert waiting(channel) == 6
    lenient = Spooled(queue_of(), log=tmp_path / "spool.db", on_invalid="dead")
    lenient.latest()
    assert lenient.rows() == ROWS
    assert lenient.dead == [('{"word": "cow", "at": "soon"}',)]
    assert waiting(channel) == 0


def test_a_message_with_a_header_that_the_client_cannot_read_is_named_as_the_cause(
    channel: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = pika.data.encode_value

    def time_in_ms(pieces: list[bytes], value: Any) -> int:
        if value != "ms":
            return int(encode(pieces, value))
        pieces.append(b"T" + (1_764_547_200_000).to_bytes(8, "big"))
        return 9

    monkeypatch.setattr(pika.data, "encode_value", time_in_ms)
    declare(channel)
    put(channel, ROWS[:1])
    channel.basic_publish("", "words", b"{}", pika.BasicProperties(headers={"sent": "ms"}))
    spool = Spooled(queue_of(), log=tmp_path / "spool.db", on_invalid="dead")
    with pytest.raises(
        SourceError, match=r"a message has a header that pika, the client, cannot read: .*year 57886.*take it out"
    ):
        spool.latest()


def test_a_queue_that_cannot_be_read_is_an_error_that_names_the_remedy(channel: Any, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"queue 'words' of amqp://\S*:\*\*\*@\S+: it is not there: .*declare it"):
        queue_of()
    channel.queue_declare("words", exclusive=True)
    with pytest.raises(SourceError, match=r"it is somebody else's, and exclusive"):
        queue_of()
    channel.queue_delete("words")
    declare(channel, "stream")
    put(channel, ROWS)
    with pytest.raises(ConfigError, match=r"queue 'words' of .* is a stream; read it with stream=True"):
        queue_of()
    with pytest.raises(ConfigError, match="the queue of a RabbitQueue is a name, got ''"):
        RabbitQueue(address("rabbitmq"), "", WORDS)
    channel.queue_delete("words")
    with pytest.raises(SourceError, match="it is not there"):
        queue_of("stream")
    declare(channel)
    put(channel, ROWS)
    with pytest.raises(ConfigError, match="is no stream; read it without stream=True"):
        queue_of("stream")
    deadline = time.monotonic() + 5
    while waiting(channel) != len(ROWS):
        assert time.monotonic() < deadline, "looking takes nothing"
    spool = Spooled(queue_of(), log=tmp_path / "spool.db")
    channel.queue_delete("words")
    with pytest.raises(SourceError, match="it is not there"):
        spool.latest()
    with pytest.raises(ConfigError, match="on_gap of a RabbitQueue is 'raise' or 'skip', got 'ignore'"):
        queue_of("stream", on_gap="ignore")


def test_a_queue_with_an_exclusive_consumer_is_an_error(channel: Any, tmp_path: Path) -> None:
    declare(channel)
    tag = channel.basic_consume("words", lambda *_: None, exclusive=True)
    spool = Spooled(queue_of(), log=tmp_path / "spool.db")
    channel.basic_qos(prefetch_count=1)
    channel.basic_cancel(tag)
    channel.basic_consume("words", lambda *_: None, exclusive=True)
    put(channel, ROWS)
    with pytest.raises(SourceError, match=r"queue 'words' of .*: another consumer reads it alone: .*; end that one"):
        spool.latest()


def test_checking_a_queue_at_construction_consumes_no_message(channel: Any, kind: str) -> None:
    """A quorum queue counts the redeliveries of a message, and drops it at its delivery limit."""
    declare(channel, kind)
    put(channel, ROWS)
    for _ in range(3):
        queue_of(kind)
    if kind != "stream":
        found = [channel.basic_get("words") for _ in ROWS]
        assert [json.loads(body)["at"] for _, _, body in found] == [at for _, at in ROWS]
        assert not any(method.redelivered for method, _, _ in found)


def test_an_unreachable_server_and_wrong_credentials_are_errors_without_the_secret(channel: Any) -> None:
    declare(channel)
    url = address("rabbitmq")
    secret, port = url.split(":")[2].partition("@")[0], url.rpartition(":")[2].partition("/")[0]
    with pytest.raises(SourceError, match=r"the server cannot be reached: .*; start it, or give another URL") as gone:
        RabbitQueue(f"amqp://windowing:{secret}@127.0.0.1:1/%2F", "words", WORDS, patience_s=2)
    with pytest.raises(SourceError, match=r"the server refuses who asks: .*; give user, password and virtual") as wrong:
        RabbitQueue(f"amqp://windowing:wr0ng-{secret}@127.0.0.1:{port}/%2F", "words", WORDS)
    with pytest.raises(SourceError, match=r"the server refuses who asks|it is not there") as host:
        RabbitQueue(f"amqp://windowing:{secret}@127.0.0.1:{port}/elsewhere", "words", WORDS)
    with pytest.raises(ConfigError, match=r"is none of AMQP: .*; write amqp://user:password@host"):
        RabbitQueue(f"http://windowing:{secret}@127.0.0.1:{port}/", "words", WORDS)
    assert secret not in f"{gone.value}{wrong.value}{host.value}{queue_of()!r}"


def test_a_server_that_is_silent_is_a_source_error_soon_after_the_patience(channel: Any) -> None:
    declare(channel)
    put(channel, ROWS)
    with Proxy(address("rabbitmq")) as proxy:
        source = RabbitQueue(proxy.url, "words", WORDS, patience_s=1)
        _made.append(source)
        assert len(source.take(1, None)) == 1
        proxy.silent = True
        began = time.monotonic()
        with pytest.raises(
            SourceError, match=r"the server cannot be reached: .*; start it, or give another URL"
        ) as silent:
            source.take(1, None)
        assert time.monotonic() - began < 40, "the heartbeat of the server is 60 s"
        assert str(urlsplit(proxy.url).password) not in str(silent.value)
        proxy.silent = False
        while waiting(channel) < len(ROWS):  # what was not confirmed is delivered again
            assert time.monotonic() - began < 60
        assert len(source.take(10, None)) == len(ROWS)


def test_a_spool_belongs_to_one_source(channel: Any, tmp_path: Path) -> None:
    declare(channel)
    Spooled(queue_of(), log=tmp_path / "spool.db")
    channel.queue_declare("others")
    try:
        with pytest.raises(
            ConfigError, match=r"was made for queue 'words' .*, now queue 'others' .*; give each source a log="
        ):
            Spooled(RabbitQueue(address("rabbitmq"), "others", WORDS), log=tmp_path / "spool.db")
        other_user = f"{address('rabbitmq').replace('windowing:', 'no-write:')}?heartbeat=30"
        Spooled(RabbitQueue(other_user, "words", WORDS), log=tmp_path / "spool.db")  # the same queue, by another user
    finally:
        channel.queue_delete("others")


# -- kills ---------------------------------------------------------------------------------------------------------------


def killed_run(kind: str, folder: Path, steps: int | None) -> None:
    """Run a topology that records its windows, and kill the process at a step: a call to the broker, or a transaction."""
    left = [steps]

    def step() -> None:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] = None if left[0] is None else left[0] - 1

    class DyingQueue(RabbitQueue):
        def take(self, limit: int, after: str | None) -> Any:
            step()
            found = super().take(limit, after)
            step()
            return found

        def confirm(self) -> None:
            step()
            super().confirm()
            step()

    class DyingSpool(Spooled):
        def ack(self, root: Root) -> None:
            step()
            super().ack(root)
            step()

        def _append(self, *arguments: Any) -> None:
            super()._append(*arguments)
            step()

    @tumbling(seconds(10), timestamp="at", output="end long")
    def shown(window: Any) -> Any:
        with open(folder / "out.txt", "a") as file:
            file.write("".join(f"{row.at}\n" for row in window))
        return window.end_timestamp

    source = DyingQueue(address("rabbitmq"), "words", WORDS, stream=kind == "stream")
    ran(DyingSpool(source, log=folder / "spool.db", max_rows=2), shown)


@pytest.mark.crash
def test_no_message_is_lost_or_stored_twice_if_the_process_is_killed_at_any_step(
    channel: Any, kind: str, tmp_path: Path
) -> None:
    rows = [(f"w{n % 3}", n * 4_000) for n in range(7)]
    deaths = 0
    while True:
        channel.queue_delete("words")
        declare(channel, kind)
        put(channel, rows)
        folder = tmp_path / str(deaths)
        folder.mkdir()
        code = in_a_child(partial(killed_run, kind, folder, deaths))
        if code == 0:
            break
        assert code == -signal.SIGKILL
        written = (
            set() if not (folder / "out.txt").exists() else {int(at) for at in (folder / "out.txt").read_text().split()}
        )
        spool = Spooled(queue_of(kind), log=folder / "spool.db")
        spool.latest()
        left = [at for _, at in spool.rows()]
        assert len(left) == len(set(left)), "what came again was put once"
        assert {at for _, at in rows} <= written | set(left), "what is gone was shown before"
        assert in_a_child(partial(killed_run, kind, folder, None)) == 0
        assert {int(at) for at in (folder / "out.txt").read_text().split()} == {at for _, at in rows}
        assert len(Spooled(queue_of(kind), log=folder / "spool.db")) == 0
        deaths += 1
    assert deaths > 8


# -- Spark ---------------------------------------------------------------------------------------------------------------


def test_on_spark_rows_are_acked_to_the_spool_after_the_commit_of_their_batch(
    spark: Any, channel: Any, tmp_path: Path
) -> None:
    from windowing.spark import MemorySink, submit

    told: list[tuple[int, list[int]]] = []
    checkpoint = tmp_path / "checkpoint"

    class Noting(Spooled):
        def ack(self, root: Root) -> None:
            commits = sorted(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
            told.append((root.batch, commits))
            super().ack(root)

    def start(drain: bool) -> list[tuple[Any, ...]]:
        sink = MemorySink()
        source = Noting(queue_of(), log=tmp_path / "spool.db", max_rows=2)
        given = {"sources": {"words": source}, "sinks": {"count": sink}, "checkpoint": str(checkpoint), "partitions": 1}
        query = submit(topology_of(), spark, drain=drain, **given)
        query.await_end(200)
        assert list(query.metrics().lag.values()) == [{"0": 0}]
        return [tuple(row) for row in sink.rows]

    declare(channel)
    put(channel, ROWS[:4])
    first = start(False)
    assert waiting(channel) == 0
    put(channel, ROWS[4:])
    assert len(first + start(True)) == 4
    assert [root for root, _ in told] == [0, 1, 2]
    assert all(max(commits) >= root for root, commits in told)
    assert len(Spooled(queue_of(), log=tmp_path / "spool.db")) == 0
