"""A process is killed, then the WAL beside its SQLite file is damaged: committed data is intact, or an error is raised."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.dying import in_a_child
from tests.stores.state_world import Add
from tests.stores.store_contract import commit
from windowing.cli.loading import CommandRefused
from windowing.cli.stored import read_states
from windowing.codec import META_MAGIC, dumps, frame
from windowing.errors import CorruptStateError, WindowingError
from windowing.queues import Root, SqliteQueue
from windowing.stores import SqliteStore, map_state
from windowing.stores.pages import SqlitePages
from windowing.stores.sqlite import SqliteRecordStore
from windowing.stores.states import SqliteStateProvider
from windowing.windows.pages import PageRows

KEYS = 40
Told = Callable[[int], None]


def state_file(path: Path, told: Told) -> None:
    """Make one checkpoint after another: prepare, record, commit; `told` reports each."""
    provider = SqliteStateProvider(path, "words")
    states = [provider.state("count", task) for task in range(2)]
    for txid in range(1_000_000):
        for state in states:
            for key in range(KEYS):
                state.put(f"key-{key}", f"{txid} " * 20)
            state.prepare_commit(txid)
        provider.save_record("checkpoint", txid)
        for state in states:
            state.commit(txid)
        told(txid)


def found_in_states(path: Path) -> int:
    with SqliteStateProvider(path, "words") as provider:
        txid = -1 if (found := provider.record("checkpoint")) is None else int(found)
        for task in range(2):
            state = provider.state("count", task)
            assert state.store.committed_txid == txid or state.store.prepared_txid == txid, (
                "a state is behind its record"
            )
            if state.store.committed_txid != txid:
                state.commit(txid)
            state.rollback()  # discards the next prepared checkpoint
            assert dict(state.items()) == {f"key-{key}": f"{txid} " * 20 for key in range(KEYS) if txid >= 0}
        return txid


def pages_file(path: Path, told: Told) -> None:
    """Write one page and one manifest per checkpoint."""
    pages = SqlitePages(path)
    for txid in range(1_000_000):
        pages.write(txid, PageRows([txid], ["x" * 3_000], [txid]))
        pages.prepare(txid, list(range(max(0, txid - 5), txid + 1)))
        pages.commit(txid)
        told(txid)


def found_in_pages(path: Path) -> int:
    with SqlitePages(path) as pages:
        txid, manifest = pages.committed() or (-1, [])
        assert manifest == list(range(max(0, txid - 5), txid + 1))
        assert all(pages.read(page).payloads == ["x" * 3_000] for page in manifest)
        return txid


def trident_store(path: Path, told: Told) -> None:
    with closing(map_state(SqliteStore(path), "counts").make_state(0, 1)) as state:
        for txid in range(1_000_000):
            commit(state, txid + 1, 0, {("key", key): Add(1) for key in range(KEYS)})
            told(txid)


def found_in_store(path: Path) -> int:
    with closing(map_state(SqliteStore(path), "counts").make_state(0, 1)) as state:
        (count,) = set(state.multi_get([("key", key) for key in range(KEYS)]))
        return -1 if count is None else count - 1


def records(path: Path, told: Told) -> None:
    store = SqliteRecordStore(path)
    for txid in range(1_000_000):
        store.write({"coordinator": b"%d" % txid, f"meta/{txid}": b"x" * 500, f"meta/{txid - 3}": None}, {})
        told(txid)


def found_in_records(path: Path) -> int:
    with closing(SqliteRecordStore(path)) as store:
        txid = int(store.read("coordinator") or b"-1")
        assert store.paths("meta/") == sorted(f"meta/{n}" for n in range(max(0, txid - 2), txid + 1))
        return txid


def queue(path: Path, told: Told) -> None:
    """Put one row and ack one row each time."""
    rows = SqliteQueue(path, "n long, text string")
    for txid in range(1_000_000):
        rows.put([(txid, "x" * 500)])
        if txid:
            rows.ack(Root(txid, {"0": txid - 1}, {"0": txid}))
        told(txid)


def found_in_queue(path: Path) -> int:
    rows = [n for n, _ in SqliteQueue(path, "n long, text string").rows()]
    last = rows[-1] if rows else -1
    assert rows in ([last], [last - 1, last], [])
    return last


FILES = {
    "state file": (state_file, found_in_states),
    "pages": (pages_file, found_in_pages),
    "trident store": (trident_store, found_in_store),
    "records": (records, found_in_records),
    "queue": (queue, found_in_queue),
}


def killed(path: Path, job: Callable[[Path, Told], None], after: int, delay_s: float | None) -> int:
    """Kill the job `delay_s` after it reported the txid `after` (None: while it sleeps there); return the last reported txid."""
    heard, tell = os.pipe()
    last = -1

    def told(txid: int) -> None:
        os.write(tell, b"%d\n" % txid)
        if delay_s is None and txid == after:
            time.sleep(60)

    def soon(pid: int) -> None:
        nonlocal last
        os.close(tell)
        with open(heard, "rb") as lines:
            while (last := int(lines.readline())) < after:
                pass
            time.sleep(delay_s or 0)
            os.kill(pid, signal.SIGKILL)
            for line in lines.read().split():
                last = int(line)

    assert in_a_child(lambda: job(path, told), soon) == -signal.SIGKILL
    return last


def damages(beside: dict[str, bytes], chance: random.Random, flips: int) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield damaged versions of the files beside the database: missing, truncated, with a flipped bit; each with its name."""
    yield "none", beside
    yield "all missing", {}
    for name, whole in beside.items():
        yield f"{name} missing", {other: content for other, content in beside.items() if other != name}
        for cut in sorted({0, len(whole) // 2, *(chance.randrange(len(whole) + 1) for _ in range(flips // 8))}):
            yield f"{name} cut at {cut}", beside | {name: whole[:cut]}
        spots = {*range(min(28, len(whole))), *(chance.randrange(len(whole)) for _ in range(flips if whole else 0))}
        for at in sorted(spots):
            other = whole[:at] + bytes([whole[at] ^ 1 << chance.randrange(8)]) + whole[at + 1 :]
            yield f"{name} flipped at {at}", beside | {name: other}


def outcomes(folder: Path, found: Callable[[Path], int], seed: int, flips: int) -> dict[str, int | str]:
    """Return for each damage the txid that was found, or the code of a `WindowingError`; any other error is raised."""
    beside = {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.name != "file.db"}
    results: dict[str, int | str] = {}
    for name, left in damages(beside, random.Random(seed), flips):
        copy = folder.with_name("copy")
        copy.mkdir()
        shutil.copy(folder / "file.db", copy)
        for file, content in left.items():
            (copy / file).write_bytes(content)
        try:
            results[name] = found(copy / "file.db")
        except WindowingError as error:
            results[name] = error.code
        shutil.rmtree(copy)
    return results


@pytest.mark.parametrize("kind", FILES)
def test_committed_data_survives_any_damage_to_the_files_beside_the_database(tmp_path: Path, kind: str) -> None:
    job, found = FILES[kind]
    folder = tmp_path / "left"
    folder.mkdir()
    told = killed(folder / "file.db", job, after=12, delay_s=None)
    results = outcomes(folder, found, told, flips=60)
    assert told == 12
    assert {name: result for name, result in results.items() if result != told} == {}, "nothing needs those files"


@pytest.mark.parametrize("seed", range(6))
def test_a_state_file_damaged_after_a_kill_in_a_commit_has_committed_data_or_is_refused(
    tmp_path: Path, seed: int
) -> None:
    job, found = FILES["state file"]
    folder = tmp_path / "left"
    folder.mkdir()
    told = killed(folder / "file.db", job, after=3 + seed, delay_s=random.Random(seed).uniform(0, 0.02))
    results = outcomes(folder, found, seed, flips=24)
    assert results["none"] in (told, told + 1)
    wrong = {
        name: result for name, result in results.items() if result not in (told, told + 1, "CORRUPT", "INCOMPATIBLE")
    }
    assert wrong == {}


@pytest.mark.parametrize("kind", [*FILES, "windowing states"])
def test_a_file_with_damaged_bytes_is_read_or_refused_by_an_error_of_the_library(tmp_path: Path, kind: str) -> None:
    """Half of the damage is in the first page, which has the schema: SQLite quotes it in errors that Python cannot decode."""
    job, found = FILES["trident store" if kind == "windowing states" else kind]
    (tmp_path / "left").mkdir()
    killed(tmp_path / "left/file.db", job, after=5, delay_s=None)
    whole = (tmp_path / "left/file.db").read_bytes()
    chance = random.Random(kind)
    refused, raw = 0, []
    for number in range(150):
        damaged = bytearray(whole)
        for _ in range(chance.choice([1, 1, 4, 40])):
            at = chance.randrange(4096 if chance.random() < 0.5 else len(damaged))
            damaged[at] = chance.choice([0, 0xFF, damaged[at] ^ 1 << chance.randrange(8)])
        copy = tmp_path / f"{number}.db"
        copy.write_bytes(damaged)
        try:
            read_states(copy) if kind == "windowing states" else found(copy)
        except (WindowingError, CommandRefused):
            refused += 1
        except Exception as problem:
            if traceback.extract_tb(problem.__traceback__)[-1].filename != __file__:  # `found` has read other data
                raw.append(f"damage {number}: {problem!r}")
    assert raw == []
    assert 20 < refused < 150


def test_a_record_that_damage_has_removed_or_renamed_is_not_a_missing_record(tmp_path: Path) -> None:
    """A missing record of a coordinator begins its topology at txid 1 again."""
    given = {f"words/{name}": frame(META_MAGIC, dumps(name)) for name in ("coordinator", *map(str, range(12)))}
    with closing(SqliteRecordStore(tmp_path / "whole.db")) as store:
        assert store.write(given, {})
    whole = (tmp_path / "whole.db").read_bytes()
    chance = random.Random(7)
    refused = 0
    for number, at in enumerate(chance.choices([at for at, byte in enumerate(whole) if byte], k=250)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << chance.randrange(8)
        copy = tmp_path / f"{number}.db"
        copy.write_bytes(damaged)
        try:
            with closing(SqliteRecordStore(copy)) as store:
                assert {path: store.read(path) for path in given} == given, f"byte {at}"
        except WindowingError:
            refused += 1
    assert 200 < refused < 250


@pytest.mark.parametrize("kind", ["trident store", "records", "queue", "state file"])
def test_a_file_whose_schema_has_lost_its_tables_is_not_a_new_file(tmp_path: Path, kind: str) -> None:
    job, found = FILES[kind]
    (tmp_path / "left").mkdir()
    killed(tmp_path / "left/file.db", job, after=5, delay_s=None)
    damaged = bytearray((tmp_path / "left/file.db").read_bytes())
    damaged[103:105] = b"\0\0"  # the number of entries in the first page
    (tmp_path / "file.db").write_bytes(damaged)
    with pytest.raises(CorruptStateError):
        found(tmp_path / "file.db")


def test_records_of_an_earlier_version_are_read_and_guarded_from_then_on(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    with closing(SqliteRecordStore(path)) as store:
        store.write({"a": b"1", "b": b"2"}, {})
        store._db.execute("DROP TABLE windowing_records_sum")
    with closing(SqliteRecordStore(path)) as store:
        assert store.write({"a": None, "c": b"3"}, {"b": b"2"})
    with closing(SqliteRecordStore(path)) as store:
        assert store.paths("") == ["b", "c"]
        store._db.execute("UPDATE windowing_records SET path = 'd' WHERE path = 'b'")
    with pytest.raises(CorruptStateError, match="2 records were found, and others than were written"):
        SqliteRecordStore(path)


def test_a_record_that_is_no_bytes_is_damage_and_not_a_missing_record(tmp_path: Path) -> None:
    with closing(SqliteRecordStore(tmp_path / "r.db")) as store:
        store.write({"coordinator": b"7"}, {})
        store._db.execute("UPDATE windowing_records SET value = 'text'")
        with pytest.raises(CorruptStateError, match="the record coordinator is 'text'"):
            store.read("coordinator")
