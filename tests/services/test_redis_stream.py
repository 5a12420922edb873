"""RedisStream on a real Redis: acks of processed entries, claims of the entries of dead consumers, kills, bad input."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.dying import in_a_child
from tests.services.conftest import address, empty, evicting, without_room
from tests.services.proxy import Cut, Proxy
from windowing import bolt, millis, seconds, tumbling
from windowing.errors import CheckpointError, ConfigError, FailedException, SourceError
from windowing.local import VirtualClock, run_topology
from windowing.local.router import ClusterResult
from windowing.queues import RedisStream, Root
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.plan import Topology

WORDS = "word string, at long"
ROWS = [("cow", 1_000), ("moon", 9_000), ("cow", 25_000), ("moon", 3_000), ("cow", 45_000)]


@pytest.fixture
def db() -> Iterator[redis.Redis]:
    empty("redis")
    with redis.Redis.from_url(address("redis")) as client:
        yield client


def put(db: redis.Redis, rows: list[tuple[str, int]], stream: str = "words") -> list[str]:
    return [db.xadd(stream, {"word": word, "at": at}).decode() for word, at in rows]  # type: ignore[union-attr]


def stream_of(fields: str = WORDS, **options: Any) -> RedisStream:
    return RedisStream(address("redis"), "words", fields, **options)


def pending(db: redis.Redis, group: str = "windowing") -> int:
    return int(db.xpending("words", group)["pending"])  # type: ignore[index]


def rows_of(stream: RedisStream, start: int, end: int) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in stream.read("0", start, end) for row in batch.to_pylist()]


@tumbling(seconds(10), timestamp="at", key="word", name="count", output="word string, end long, n long")
def counted(window: Any) -> Any:
    return window.key, window.end_timestamp, len(window)


def topology_of(declared: Any = counted, **settings: Any) -> Topology:
    builder = TopologyBuilder("queued").configure({"topology.enable.message.timeouts": False, **settings})
    builder.set_spout("words", InputSpout(WORDS))
    builder.set_bolt("count", declared).global_grouping("words")
    return builder.build()


def ran(stream: RedisStream, declared: Any = counted, drain: bool = True, **settings: Any) -> ClusterResult:
    sources = {"words": stream}
    return run_topology(topology_of(declared, **settings), sources=sources, clock=VirtualClock(), drain=drain)


# -- acks ----------------------------------------------------------------------------------------------------------------


def test_entries_are_acked_when_their_windows_have_expired_and_the_next_run_reads_the_rest(db: redis.Redis) -> None:
    put(db, ROWS[:4])
    assert ran(stream_of(max_rows=2), drain=False)["count"] == []
    assert pending(db) == 4, "windows are open: nothing is acked"
    put(db, ROWS[4:])
    assert sorted(ran(stream_of(max_rows=2))["count"]) == [
        ("cow", 10_000, 1),
        ("cow", 30_000, 1),
        ("cow", 50_000, 1),
        ("moon", 10_000, 2),
    ]
    assert pending(db) == 0
    assert len(stream_of()) == 0
    assert ran(stream_of())["count"] == []
    assert db.xlen("words") == 5, "another group may read them still"


def test_a_range_of_offsets_always_has_the_same_rows_also_in_a_pickled_copy(db: redis.Redis) -> None:
    ids = put(db, ROWS)
    stream = stream_of("entry_id string, word string, at long", partitions=2)
    assert stream.initial() == {"0": 0, "1": 0}
    assert stream.latest() == {"0": 5, "1": 5}
    copy = pickle.loads(pickle.dumps(stream))
    for each in (stream, copy, stream):
        assert rows_of(each, 1, 5) == [(ids[1], *ROWS[1]), (ids[3], *ROWS[3])]
    put(db, [("late", 1)])
    assert rows_of(stream, 1, 5) == [(ids[1], *ROWS[1]), (ids[3], *ROWS[3])]
    stream.ack(Root(0, {"0": 0, "1": 0}, {"0": 2, "1": 3}))
    stream.ack(Root(0, {"0": 0, "1": 0}, {"0": 2, "1": 3}))
    assert pending(db) == 2
    assert rows_of(stream, 0, 5) == [(ids[3], *ROWS[3])]


def test_more_entries_than_one_page_are_read_in_order(db: redis.Redis) -> None:
    rows = [(f"w{n}", n) for n in range(2_500)]
    with db.pipeline() as pipe:
        for word, at in rows:
            pipe.xadd("words", {"word": word, "at": at})
        pipe.execute()
    stream = stream_of()
    assert stream.latest() == {"0": 2_500}
    assert rows_of(stream, 0, 2_500) == rows
    stream.fail(Root(0, {"0": 0}, {"0": 2_400}), "count")
    assert rows_of(stream, 2_400, 4_900) == rows[2_400:] + rows[:2_400]


def test_a_partition_fetches_its_own_entries_only(db: redis.Redis) -> None:
    for n in range(1_500):
        db.xadd("words", {"word": "w" * 100, "at": n})
    sent = []
    for partitions in (1, 8):
        stream = stream_of(group=f"g{partitions}", partitions=partitions)
        end, before = stream.latest(), db.info("stats")["total_net_output_bytes"]  # type: ignore[index]
        found = [row["at"] for name in end for batch in stream.read(name, 0, end[name]) for row in batch.to_pylist()]
        sent.append(db.info("stats")["total_net_output_bytes"] - before)  # type: ignore[index]
        assert sorted(found) == list(range(1_500))
        stream.close()
    assert sent[1] < 1.2 * sent[0]


def test_new_entries_while_others_are_read_do_not_delay_the_batch(db: redis.Redis) -> None:
    class Followed(RedisStream):
        calls = 0

        def _script(self, text: str, *arguments: str | int) -> Any:
            self.calls += 1
            assert self.calls < 20, "a batch waits for those who send"
            found = super()._script(text, *arguments)
            send(1_000)
            return found

    def send(count: int) -> None:
        with db.pipeline() as all_at_once:
            for n in range(count):
                all_at_once.xadd("words", {"word": "w", "at": n})
            all_at_once.execute()

    send(500)
    queue = Followed(address("redis"), "words", WORDS)
    assert queue.latest() == {"0": 2_000}, "two pages: all that there was after the first, and no more"


def test_a_failed_entry_is_replayed_and_becomes_a_dead_letter_after_max_attempts(db: redis.Redis) -> None:
    @bolt(output="word string")
    def picky(tuple: Any) -> Any:
        if tuple.word == "moon":
            raise FailedException("never")
        return tuple.word

    ids = put(db, ROWS[:3])
    stream = stream_of(max_rows=1, max_attempts=2)
    found = ran(stream, picky, max_attempts=1)
    assert found["count"] == [("cow",), ("cow",)]
    assert stream.dead == [(ids[1], "count", {"word": "moon", "at": "9000"})]
    assert pending(db) == len(stream) == 0


# -- consumers and groups ------------------------------------------------------------------------------------------------


def test_entries_of_a_dead_consumer_are_claimed_and_those_of_a_live_one_are_not(db: redis.Redis) -> None:
    put(db, ROWS)
    dead = stream_of(consumer="dead", claim_after=millis(300))
    assert dead.latest() == {"0": 5}
    living = stream_of(consumer="living", claim_after=millis(300))
    for _ in range(4):
        time.sleep(0.1)
        assert living.latest() == {"0": 0}
        assert dead.latest() == {"0": 5}, "asking is a sign of life"
    time.sleep(0.35)
    assert living.latest() == {"0": 5}
    assert rows_of(living, 0, 5) == ROWS
    assert sorted(ran(living)["count"])[0] == ("cow", 10_000, 1)
    assert pending(db) == 0
    assert stream_of(consumer="never", claim_after=None).latest() == {"0": 0}


def test_all_entries_of_a_dead_consumer_are_claimed_at_once_also_if_the_stream_has_lost_more_than_it_has(
    db: redis.Redis,
) -> None:
    with db.pipeline() as all_at_once:
        for n in range(1_200):
            all_at_once.xadd("words", {"word": "w", "at": n})
        all_at_once.execute()
    assert stream_of(consumer="dead", claim_after=millis(300)).latest() == {"0": 1_200}
    db.xtrim("words", maxlen=0, approximate=False)
    put(db, ROWS)
    time.sleep(0.35)
    living = stream_of(consumer="living", claim_after=millis(300), on_gap="skip")
    assert living.latest() == {"0": 1_205}
    assert rows_of(living, 0, 1_205) == ROWS


def test_entries_claimed_back_by_a_consumer_keep_their_offsets(db: redis.Redis) -> None:
    put(db, ROWS)
    first, second = (stream_of(consumer=name, claim_after=millis(200)) for name in ("first", "second"))
    for stream in (first, second, first):
        assert stream.latest() == {"0": 5}
        time.sleep(0.3)
    assert rows_of(first, 0, 5) == ROWS


def test_groups_read_the_same_stream_independently(db: redis.Redis) -> None:
    put(db, ROWS)
    for group in ("first", "second"):
        assert len(ran(stream_of(group=group))["count"]) == 4
    assert pending(db, "first") == pending(db, "second") == 0


def test_a_query_whose_checkpoint_is_older_than_the_acks_is_refused(db: redis.Redis) -> None:
    put(db, ROWS)
    stream = stream_of()
    stream.begin("query", None)
    stream.latest()
    stream.ack(Root(0, {"0": 0}, {"0": 3}))
    with pytest.raises(
        CheckpointError, match=r"words of redis://:\*\*\*@.* was acked up to offset 3 .* it is an older copy"
    ):
        stream.begin("query", {"0": 1})
    stream.begin("query", {"0": 3})
    stream.begin("another", None)
    with pytest.raises(CheckpointError, match="another query reads the stream"):
        stream.begin("query", {"0": 3})


def test_a_query_whose_consumer_another_one_has_taken_over_acks_and_fails_nothing_any_more(db: redis.Redis) -> None:
    put(db, ROWS)
    stream, other, root = stream_of(), stream_of(), Root(0, {"0": 0}, {"0": 3})
    stream.begin("query", None)
    stream.latest()
    other.begin("another", None)
    for use in (lambda: stream.ack(root), lambda: stream.fail(root, "count")):
        with pytest.raises(
            SourceError, match=r"another query has begun to read the stream .* as consumer 'windowing' since"
        ):
            use()
    assert pending(db) == 5
    other.ack(root)
    assert pending(db) == 2
    empty("redis")
    with pytest.raises(SourceError, match="is not the one that consumer 'windowing' has read"):
        other.ack(root)


@pytest.mark.parametrize("after", [False, True], ids=["before the server has it", "before its answer arrives"])
def test_each_call_has_one_effect_if_the_connection_is_cut_at_any_request(db: redis.Redis, after: bool) -> None:
    def life(url: str) -> None:
        stream = RedisStream(url, "words", WORDS)
        stream.begin("second query", None)
        assert stream.latest() == {"0": 5}
        assert rows_of(stream, 0, 5) == ROWS
        stream.ack(Root(0, {"0": 0}, {"0": 3}))
        stream.fail(Root(1, {"0": 3}, {"0": 5}), "count")
        assert stream.latest() == {"0": 7}
        assert rows_of(stream, 5, 7) == ROWS[3:]
        stream.ack(Root(2, {"0": 5}, {"0": 7}))
        assert pending(db) == len(stream) == 0
        stream.close()

    def requests(cut_at: int) -> int:
        db.flushdb()
        put(db, ROWS)
        stream_of().begin("first query", None)
        began = proxy.requests
        proxy.cut = Cut(began + cut_at, after)
        life(proxy.url)
        return proxy.requests - began

    with Proxy(address("redis")) as proxy:
        undisturbed = requests(cut_at=0)
        assert undisturbed > 10
        for step in range(1, undisturbed + 1):
            requests(cut_at=step)
            assert proxy.cuts == step, "the connection was not cut"


@pytest.mark.parametrize("is_running", [True, False])
def test_a_server_that_lost_its_newest_data_is_refused_and_no_new_entry_counts_as_read(
    db: redis.Redis, is_running: bool
) -> None:
    put(db, ROWS)
    stream = stream_of()
    stream.begin("query", None)
    stream.latest()
    copy: dict[Any, Any] = {key: db.dump(key) for key in db.scan_iter()}
    put(db, ROWS[:3])
    read = stream.latest()
    for key, dumped in copy.items():  # a failover to a replica that was behind
        db.restore(key, 0, dumped, replace=True)
    put(db, ROWS)
    again = stream if is_running else stream_of()
    with pytest.raises(
        SourceError, match=r"words of redis://:\*\*\*@\S+ ends at offset 5, and was read up to 8: .* is lost"
    ):
        again.latest() if is_running else again.begin("query", read)
    fresh = stream_of()
    fresh.begin("LocalCluster, which has no checkpoint", None)
    assert rows_of(fresh, fresh.initial()["0"], fresh.latest()["0"]) == ROWS + ROWS


def test_a_server_that_evicts_keys_is_refused(db: redis.Redis) -> None:
    put(db, ROWS)
    with (
        evicting(db),
        pytest.raises(ConfigError, match=r"words of redis://:\*\*\*@\S+ .* \(maxmemory-policy allkeys-lru\)"),
    ):
        stream_of()
    assert len(ran(stream_of())["count"]) == 4


def test_a_server_without_room_is_an_error_and_every_entry_is_read_later(db: redis.Redis) -> None:
    put(db, ROWS)
    stream = stream_of()
    way_out = r"trim acked entries \(XTRIM words MINID\), or raise maxmemory, and start again; what was taken is still"
    with without_room(db), pytest.raises(SourceError, match=way_out):
        stream.latest()
    assert len(ran(stream)["count"]) == 4


# -- bad input -----------------------------------------------------------------------------------------------------------


def test_a_missing_key_a_key_of_another_type_and_changed_fields_are_refused(db: redis.Redis) -> None:
    with pytest.raises(ConfigError, match=r"the key 'words' of redis://:\*\*\*@\S+ is not there: XADD its first entry"):
        stream_of()
    db.set("words", "text")
    with pytest.raises(ConfigError, match=r"is a string, no stream: give the key of one"):
        stream_of()
    db.delete("words")
    put(db, ROWS)
    stream_of()
    with pytest.raises(
        ConfigError, match=r"was made with fields 'word string, at bigint', now 'word string'; give another"
    ):
        stream_of("word string")
    for options in ({"partitions": 0}, {"max_rows": True}, {"group": ""}, {"consumer": "a{b"}, {"on_gap": "ignore"}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            stream_of(**options)


def test_an_unreachable_server_and_wrong_credentials_are_errors_without_the_secret(db: redis.Redis) -> None:
    put(db, ROWS)
    url = address("redis")
    secret, port = url.split(":")[2].partition("@")[0], url.rpartition(":")[2].partition("/")[0]
    with pytest.raises(SourceError, match=r"server cannot be reached: .*; start it, or give another URL") as gone:
        RedisStream(f"redis://:{secret}@127.0.0.1:1/0", "words", WORDS)
    with pytest.raises(
        SourceError, match=r"the server refuses who asks: .*; give user and password in the URL"
    ) as wrong:
        RedisStream(f"redis://:wr0ng-{secret}@127.0.0.1:{port}/0", "words", WORDS)
    with pytest.raises(ConfigError, match=r"the address of .* is none of a Redis server"):
        RedisStream(f"http://:{secret}@127.0.0.1:{port}/0", "words", WORDS)
    assert secret not in f"{gone.value}{wrong.value}{stream_of()!r}"


@pytest.mark.parametrize(
    "rules",
    [
        "~other +@all",
        "%R~words ~windowing* +@all",
        *(f"~* +@all -{command}" for command in ("xreadgroup", "eval", "zadd", "hincrby")),
    ],
)
def test_a_user_without_the_rights_is_refused_and_no_entry_is_delivered(db: redis.Redis, rules: str) -> None:
    put(db, ROWS)
    stream_of()
    db.execute_command("ACL", "SETUSER", "reader", "on", ">s3cret-word", *rules.split())  # type: ignore[no-untyped-call]
    url = f"redis://reader:s3cret-word@{address('redis').rpartition('@')[2]}"
    try:
        with pytest.raises(
            SourceError, match=r"the server refuses who asks: .*; give user and password .* with rights"
        ) as no:
            RedisStream(url, "words", WORDS).latest()
    finally:
        db.execute_command("ACL", "DELUSER", "reader")  # type: ignore[no-untyped-call]
    assert "s3cret" not in str(no.value)
    assert pending(db) == 0
    found = stream_of()
    assert rows_of(found, 0, found.latest()["0"]) == ROWS


def test_an_existing_group_is_continued_and_entries_of_its_other_consumers_are_claimed_after_claim_after(
    db: redis.Redis,
) -> None:
    put(db, ROWS[:2])
    db.xgroup_create("words", "windowing", "$")
    ids = put(db, ROWS[2:])
    db.xreadgroup("windowing", "foreign", {"words": ">"}, count=1)
    mine = stream_of(claim_after=millis(300))
    assert mine.latest() == {"0": 2}
    assert rows_of(mine, 0, 2) == ROWS[3:], "neither what is before the group's place nor what another consumer holds"
    time.sleep(0.35)
    assert mine.latest() == {"0": 3}
    assert rows_of(mine, 2, 3) == ROWS[2:3]
    mine.ack(Root(0, {"0": 0}, {"0": 2}))
    left: Any = db.xpending_range("words", "windowing", "-", "+", 10)
    assert [each["message_id"].decode() for each in left] == ids[:1]


def test_a_consumer_whose_keys_are_those_of_another_one_is_refused_by_its_name(db: redis.Redis) -> None:
    """Slashes in names: `a/b/c` is consumer `c` of group `a/b`, and `b/c` of group `a`."""
    put(db, ROWS)
    reading = stream_of(group="a/b", consumer="c")
    assert reading.latest() == {"0": 5}
    # The group is there now, and the entries of the other one must not become its own.
    stream_of(group="a", consumer="another")
    wanted = "the keys of consumer 'b/c' of group 'a' would be those of consumer 'c' of group 'a/b'.*; give another consumer="
    with pytest.raises(ConfigError, match=wanted):
        stream_of(group="a", consumer="b/c")
    assert stream_of(group="a/b", consumer="c").identity == reading.identity
    assert len(reading) == 5
    db.hdel("windowing:{words}:a/b/c:facts", "group", "consumer")  # an earlier version did not store them
    assert stream_of(group="a/b", consumer="c").identity == reading.identity
    with pytest.raises(ConfigError, match=wanted):
        stream_of(group="a", consumer="b/c")


def test_a_renamed_stream_a_deleted_group_and_a_flushed_database_are_detected(db: redis.Redis) -> None:
    put(db, ROWS)
    stream = stream_of()
    stream.latest()
    db.rename("words", "elsewhere")
    with pytest.raises(SourceError, match=r"is not the one that consumer 'windowing' has read"):
        stream.latest()
    db.rename("elsewhere", "words")
    db.xgroup_destroy("words", "windowing")
    for call in (stream_of, stream.latest):
        with pytest.raises(SourceError, match=r"is not the one that consumer 'windowing' has read"):
            call()
    db.flushdb()
    put(db, ROWS)
    assert stream_of().identity != stream.identity
    for call in (stream.latest, partial(stream.begin, "query", None)):
        with pytest.raises(SourceError, match=r"is not the one that consumer 'windowing' has read"):
            call()


def test_an_entry_trimmed_before_its_ack_is_an_error_or_skipped(
    db: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    ids = put(db, ROWS)
    stream = stream_of()
    stream.latest()
    db.xtrim("words", maxlen=4, approximate=False)
    with pytest.raises(
        SourceError, match=rf"entry {ids[0]} of the stream words .* was trimmed or deleted .* on_gap=\"skip\""
    ):
        rows_of(stream, 0, 5)
    assert rows_of(stream_of(on_gap="skip"), 0, 5) == ROWS[1:]
    assert f"entry {ids[0]} of the stream words" in caplog.text


def test_a_trimmed_entry_of_a_consumer_is_reported_by_the_one_that_claims_it(
    db: redis.Redis,
) -> None:
    ids = put(db, ROWS)
    dead = stream_of(consumer="dead", claim_after=millis(300))
    assert dead.latest() == {"0": 5}
    other = stream_of(consumer="other", claim_after=millis(300))
    db.xtrim("words", maxlen=3, approximate=False)
    assert other.latest() == {"0": 0}, "who lives may have read what it will ack, or misses it itself"
    with pytest.raises(SourceError, match=rf"entry {ids[0]} of the stream words"):
        rows_of(dead, 0, 5)
    time.sleep(0.35)
    assert other.latest() == {"0": 5}
    with pytest.raises(SourceError, match=rf"entry {ids[0]} of the stream words .* was trimmed or deleted"):
        rows_of(other, 0, 5)
    assert rows_of(stream_of(consumer="other", on_gap="skip"), 0, 5) == ROWS[2:]


def test_entries_trimmed_before_delivery_are_an_error_or_skipped_and_counted(
    db: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    put(db, ROWS)
    db.xtrim("words", maxlen=4, approximate=False)
    stream = stream_of()  # a new group begins with the first existing entry
    assert stream.latest() == {"0": 4}
    last = put(db, ROWS[:2])[-1]
    assert stream.latest() == {"0": 6}
    put(db, ROWS)
    db.xtrim("words", maxlen=2, approximate=False)
    sentence = (
        rf"3 entries of the stream words .* behind {last} were trimmed or deleted before group 'windowing' has read"
    )
    for _ in range(2):
        with pytest.raises(SourceError, match=sentence):
            stream.latest()
    skipping = stream_of(on_gap="skip")
    assert skipping.latest() == {"0": 8}
    assert rows_of(skipping, 6, 8) == ROWS[3:]
    assert f"3 entries of the stream {skipping.path} behind {last}" in caplog.text
    caplog.clear()
    put(db, ROWS[:1])
    assert skipping.latest() == {"0": 9}
    stream.ack(Root(0, {"0": 0}, {"0": 9}))
    db.xtrim("words", maxlen=0, approximate=False)
    put(db, ROWS[:1])
    assert stream.latest() == {"0": 10}
    assert caplog.text == "", "once told, and what was read may be trimmed"


def test_an_entry_that_does_not_match_the_schema_is_an_error_or_a_dead_letter(db: redis.Redis) -> None:
    put(db, ROWS[:1])
    odd = [db.xadd("words", {"word": "cow", "at": "soon"}).decode(), db.xadd("words", {"other": "x"}).decode()]  # type: ignore[union-attr]
    put(db, ROWS[1:])
    stream = stream_of()
    stream.latest()
    with pytest.raises(
        SourceError, match=rf"entry {odd[0]} .* is no row of .*: its field at is 'soon', no bigint; .* on_invalid"
    ):
        rows_of(stream, 0, 7)
    lenient = stream_of(on_invalid="dead")
    assert rows_of(lenient, 0, 7) == rows_of(lenient, 0, 7) == ROWS
    assert [(id, why.split(",")[0]) for id, why, _ in lenient.dead] == [
        (odd[0], "its field at is 'soon'"),
        (odd[1], "it has the fields ['other']"),
    ]


def test_an_invalid_entry_with_the_names_of_a_dead_letter_or_with_many_fields_is_a_dead_letter(db: redis.Redis) -> None:
    spoof = db.xadd("words", {"at": "soon", "__id": "0-1", "__why": "count"}).decode()  # type: ignore[union-attr]
    many = db.xadd("words", {f"f{n}": n for n in range(5_000)} | {"at": "soon"}).decode()  # type: ignore[union-attr]
    put(db, ROWS)
    stream = stream_of(on_invalid="dead")
    stream.latest()
    assert rows_of(stream, 0, 7) == ROWS
    (id, why, fields), (other, _, some) = stream.dead
    assert (id, why.split(",")[0], other) == (spoof, "its field at is 'soon'", many)
    assert fields == {"at": "soon", "__id": "0-1", "__why": "count"}
    assert len(some) == 3_500, "a script of Redis cannot pass on more; the entry itself is in the stream"


# -- kills ---------------------------------------------------------------------------------------------------------------


def killed_run(out: Path, calls: int | None) -> None:
    """Run a topology that records its windows, and kill the process before or after the n-th command to the server."""
    left = [calls]

    def step() -> None:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] = None if left[0] is None else left[0] - 1

    class Dying(RedisStream):
        def _call(self, *command: Any) -> Any:
            step()
            found = super()._call(*command)
            step()
            return found

    @tumbling(seconds(10), timestamp="at", output="end long")
    def shown(window: Any) -> Any:
        with open(out, "a") as file:
            file.write("".join(f"{row.at}\n" for row in window))
        return window.end_timestamp

    ran(Dying(address("redis"), "words", WORDS, max_rows=2), shown)


@pytest.mark.crash
def test_no_entry_is_lost_if_the_process_is_killed_at_any_command(db: redis.Redis, tmp_path: Path) -> None:
    rows = [(f"w{n % 3}", n * 4_000) for n in range(7)]
    deaths, alone = 0, 0
    while True:
        db.flushdb()
        put(db, rows)
        out = tmp_path / f"{deaths}.txt"
        code = in_a_child(partial(killed_run, out, deaths))
        written = set() if not out.exists() else {int(at) for at in out.read_text().split()}
        if code == 0:
            break
        assert code == -signal.SIGKILL
        taken = int(db.hget("windowing:{words}:windowing/windowing:facts", "last") or 0)  # type: ignore[arg-type]
        acked = taken - pending(db) if taken else 0
        assert acked <= len(written), "acked before a window has shown it"
        assert in_a_child(partial(killed_run, out, None)) == 0
        shown = [int(at) for at in out.read_text().split()]
        assert set(shown) == {at for _, at in rows}
        assert pending(db) == 0
        alone += len(shown) == len(rows)
        deaths += 1
    assert deaths > 20
    assert alone > 5, "most kills repeat nothing"


# -- Spark ---------------------------------------------------------------------------------------------------------------


def test_on_spark_entries_are_acked_after_the_commit_of_their_batch(
    spark: Any, db: redis.Redis, tmp_path: Path
) -> None:
    from windowing.spark import MemorySink, submit

    told: list[tuple[int, list[int]]] = []
    checkpoint = tmp_path / "checkpoint"

    class Noting(RedisStream):
        def ack(self, root: Root) -> None:
            commits = sorted(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
            told.append((root.batch, commits))
            super().ack(root)

    def start(drain: bool) -> list[tuple[Any, ...]]:
        sink = MemorySink()
        source = Noting(address("redis"), "words", WORDS, max_rows=2)
        given = {"sources": {"words": source}, "sinks": {"count": sink}, "checkpoint": str(checkpoint), "partitions": 1}
        submit(topology_of(), spark, drain=drain, **given).await_end(200)
        return sorted(tuple(row) for row in sink.rows)

    put(db, ROWS[:4])
    assert start(False) == [("cow", 10_000, 1), ("moon", 10_000, 1)]
    assert pending(db) == 4 - 2 * len(told)
    put(db, ROWS[4:])
    late = start(True)
    assert ("cow", 30_000, 1) in late
    assert ("cow", 50_000, 1) in late
    assert [root for root, _ in told] == [0, 1, 2]
    assert all(max(commits) >= root for root, commits in told), "acked after the commit of what settled it"
    assert pending(db) == 0
    assert json.loads((checkpoint / "offsets" / "0").read_text().splitlines()[2])["source"]


def test_a_server_that_does_not_answer_is_waited_for_once_for_the_patience() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(SourceError, match="the server cannot be reached"):
            RedisStream(f"redis://127.0.0.1:{silent.getsockname()[1]}/0", "orders", "n long", patience_s=0.5)
        assert 0.4 < time.monotonic() - began < 2
