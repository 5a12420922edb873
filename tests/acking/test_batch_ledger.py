"""BatchLedger compared with a model that keeps every edge, and the records that it refuses; Acks over kills of its driver."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windowing.acking.batches import BatchLedger, BatchRecord, RootOutcome, RootPartial
from windowing.errors import AckError, CorruptStateError, SnapshotError
from windowing.queues.spout import Root
from windowing.spark.acks import Acks, Partials, edge_ids, merged, packed_roots, partials_of, root_of, unpacked_roots


class Model:
    """The open edges of each root: an edge is added when it is made and removed when it is acked."""

    def __init__(self) -> None:
        self.edges: dict[int, set[int]] = {}
        self.failed: set[int] = set()
        self.over: set[int] = set()

    def news(self) -> set[tuple[int, bool]]:
        found = set()
        for root, edges in self.edges.items():
            if root not in self.over and (root in self.failed or not edges):
                self.over.add(root)
                found.add((root, root in self.failed))
        return found


@given(st.integers(0, 10**6), st.integers(1, 12))
def test_a_root_is_done_in_the_first_batch_that_leaves_it_no_edge_or_that_fails_it(seed: int, batches: int) -> None:
    chance = random.Random(seed)
    model, ledger, log = Model(), BatchLedger(), []
    for batch in range(batches):
        begun = {batch << 16 | number: {"batch": batch} for number in range(chance.randrange(3))}
        model.edges |= {root: set() for root in begun}
        partials = []
        for root in [root for root in model.edges if root not in model.over or model.edges[root]]:
            edges = model.edges[root]
            made = {chance.getrandbits(64) | 1 for _ in range(chance.randrange(4) if root not in model.over else 0)}
            done = {edge for edge in edges | made if chance.random() < 0.5}
            failed = f"b{root}" if chance.random() < 0.1 else None
            if failed is not None:
                model.failed.add(root)
            model.edges[root] = (edges | made) - done
            for several in (made, done):  # two upstream tasks report it
                xor = 0
                for edge in several:
                    xor ^= edge
                partials.append(RootPartial(root, xor, len(several) * (1 if several is made else -1), failed))
        chance.shuffle(partials)
        log.append(BatchRecord(batch, begun, tuple(partials), notified=batch - 1))
        ledger.apply(log[-1])
        ledger.check()
        found = ledger.outcomes(batch)
        assert {(news.root, news.failed is not None) for news in found} == model.news()
        assert all(news.batch == batch and news.payload == {"batch": news.root >> 16} for news in found)
        assert set(ledger.open) == set(model.edges) - model.over
        assert len(ledger) == sum(bool(edges) for edges in model.edges.values()), "what is over leaves nothing"
        if chance.random() < 0.3:
            ledger = BatchLedger.restored(ledger.snapshot())
    folded = BatchLedger()
    for record in log:
        folded.apply(BatchRecord.of(record.plain()))
    assert folded.snapshot() == ledger.snapshot(), "a ledger is what its log folds to"


def test_an_outcome_stays_until_the_spout_was_notified() -> None:
    ledger = BatchLedger()
    ledger.apply(BatchRecord(0, {1: "a"}, ()))
    ledger.apply(BatchRecord(1, {2: "b"}, ()))
    assert ledger.outcomes(upto=0) == [RootOutcome(0, 1, None, "a")]
    assert ledger.next_outcome == 0
    ledger.notified(0)
    assert ledger.outcomes(upto=1) == [RootOutcome(1, 2, None, "b")]
    ledger.apply(BatchRecord(2, {}, (), notified=1))
    assert ledger.outcomes(upto=2) == []
    assert ledger.next_outcome is None


def test_the_ledger_of_a_new_run_has_the_open_roots_and_its_batch_0_the_outcomes_that_no_spout_has_heard() -> None:
    ledger = BatchLedger()
    ledger.apply(BatchRecord(0, {1: "a"}, ()))
    ledger.apply(BatchRecord(1, {2: "b", 3: "c"}, (RootPartial(3, 1, 1),), notified=0))
    new = ledger.continued_ledger()
    assert new.outcomes(upto=0) == [RootOutcome(0, 2, None, "b")]
    assert new.open == ledger.open
    new.apply(BatchRecord(1, {}, (RootPartial(3, 1, -1),), notified=0))
    assert new.outcomes(upto=1) == [RootOutcome(1, 3, None, "c")]


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        (BatchRecord(7, {}, ()), "came after batch 0"),
        (BatchRecord(0, {}, ()), "came after batch 0"),
        (BatchRecord(1, {5: None}, ()), "begins root 5, which is open"),
        (BatchRecord(1, {}, (RootPartial(6, 1, 1),)), "is not open"),
        (BatchRecord(1, {}, (RootPartial(5, -1, 1),)), "the XOR not in"),
        (BatchRecord(1, {}, (RootPartial(5, 0b11, -1),)), "they are zero together"),
        (BatchRecord(1, {}, (RootPartial(5, 0b10, -2),)), "they are zero together"),
        (BatchRecord(1, {}, (RootPartial(5, 0b111, -3),)), "they are zero together"),
    ],
)
def test_an_impossible_record_is_refused_and_changes_nothing(record: BatchRecord, sentence: str) -> None:
    ledger = BatchLedger()
    ledger.apply(BatchRecord(0, {5: None}, (RootPartial(5, 0b11, 2),)))
    before = ledger.snapshot()
    with pytest.raises(AckError, match=sentence):
        ledger.apply(record)
    assert ledger.snapshot() == before


@pytest.mark.parametrize(
    "damage",
    [
        {},
        None,
        {"version": 2, "batch": 0, "told": 0, "roots": [], "news": [], "begun": [], "partials": []},
        {"version": 1, "batch": 0, "told": 0, "roots": [[1]], "news": []},
        {"version": 1, "batch": 0, "told": 0, "roots": [[1, None, 0, 2, None, None]], "news": []},
        {"version": 1, "batch": 0, "told": 0, "roots": [[1, None, 3, 0, None, None]], "news": []},
        {"version": 1, "batch": 0, "told": 0, "roots": [], "news": [[0, 1, None, None, None]]},
    ],
)
def test_damaged_snapshots_and_records_are_refused(damage: Any) -> None:
    with pytest.raises(SnapshotError):
        BatchLedger.restored(damage)
    with pytest.raises(SnapshotError):
        BatchRecord.of(damage)


def test_edge_ids_from_batch_sender_place_and_position_do_not_collide() -> None:
    ids = [edge_ids(b, s, p, range(50)) for b in range(6) for s in (0, 1, 1 << 20) for p in range(6)]
    known = np.concatenate(ids)
    assert known.dtype == np.uint64
    assert len(np.unique(known)) == len(known)
    assert (known != 0).all()
    assert (edge_ids(3, 1, 2, [5, 6]) == edge_ids(3, 1, 2, range(7))[5:]).all()


roots = st.lists(st.lists(st.integers(0, 2**50), max_size=3).map(lambda found: tuple(sorted(set(found)))), max_size=20)


@given(roots)
def test_packed_roots_are_read_back_unchanged_and_equal_roots_share_one_object(
    given_roots: list[tuple[int, ...]],
) -> None:
    known: dict[bytes, tuple[int, ...]] = {}
    found = unpacked_roots(packed_roots(given_roots), known) + unpacked_roots(packed_roots(given_roots), known)
    assert found == given_roots * 2
    assert len({id(each) for each in found}) == len(set(given_roots))
    assert merged(given_roots) == tuple(sorted({root for each in given_roots for root in each}))


def test_partials_are_merged_per_root_whatever_the_order_of_the_senders() -> None:
    one, other = Partials(), Partials()
    one.made(np.array([1, 2, 4], np.uint64), [(7,), (7, 8), ()])
    one.fail((8,), "b")
    other.made(np.array([2**63], np.uint64), [(8,)])
    other.fail((8, 9), "a")
    tables = [one.table() or b"", other.table() or b""]
    wanted = (RootPartial(7, 3, 2), RootPartial(8, 2**63 + 2, 2, "a"), RootPartial(9, 0, 0, "a"))
    assert partials_of(tables) == partials_of(reversed(tables)) == wanted
    assert Partials().table() is None


def test_a_root_with_dead_letters_is_acked_after_them_and_names_the_component_that_gave_up_unless_it_failed() -> None:
    ledger = BatchLedger()
    ledger.apply(
        BatchRecord(0, {1: "a", 2: "b"}, (RootPartial(1, 5, 1, None, "picky"), RootPartial(2, 6, 1, None, "picky")))
    )
    assert ledger.outcomes(upto=0) == [], "the letters are under way"
    ledger = BatchLedger.restored(ledger.snapshot())
    ledger.apply(BatchRecord.of(BatchRecord(1, {}, (RootPartial(1, 5, -1), RootPartial(2, 6, -1, "count"))).plain()))
    assert ledger.outcomes(upto=1) == [RootOutcome(1, 1, None, "a", "picky"), RootOutcome(1, 2, "count", "b")]
    ledger.check()


def test_records_and_snapshots_from_before_dead_letters_are_read() -> None:
    record = BatchRecord(0, {1: "a"}, (RootPartial(1, 5, 1),)).plain()
    record["partials"] = [each[:4] for each in record["partials"]]
    ledger = BatchLedger()
    ledger.apply(BatchRecord.of(record))
    snapshot = ledger.snapshot()
    snapshot["roots"] = [each[:5] for each in snapshot["roots"]]
    again = BatchLedger.restored(snapshot)
    again.apply(BatchRecord(1, {}, (RootPartial(1, 5, -1),)))
    assert again.outcomes(upto=1) == [RootOutcome(1, 1, None, "a")]


# -- Acks --------------------------------------------------------------------------------------------------------------------------


class Files(dict[str, bytes]):
    """The part of a Folder that Acks uses."""

    def of(self, name: str) -> str:
        return name

    exists, read, names = dict.__contains__, dict.__getitem__, dict.keys
    write, delete = dict.__setitem__, dict.__delitem__


class Query:
    """A query fed by one spout: most batches have a row that is done up to three batches later, and is acked, failed or given up.

    Of five batches the third has no new row, and the offset of the one before; the fourth has an offset without rows.
    """

    identity = None

    def __init__(self) -> None:
        self.acks, self.offsets, self.commits = Files(), Files(), Files()
        self.told: dict[int, set[str]] = {}
        self.run = self.started()

    def started(self) -> Acks:
        self.run = Acks(self, {3: ("queue", self)})  # type: ignore[arg-type, dict-item]
        self.run.open()
        return self.run

    def evaluate(self, batch: int) -> None:
        start, end = self.read_in(batch)
        offset = {"spout": "queue", "from": {"0": start}, "to": {"0": end}}
        self.offsets[str(batch)] = f"v1\n{{}}\n-\n{json.dumps(offset)}".encode()
        partials = Partials()
        if self.has_row(batch):
            partials.made(np.array([batch + 1], np.uint64), [(root_of(batch, 3),)])
        for root in filter(self.has_row, range(max(0, batch - 3), batch + 1)):
            if self.done_in(root) == batch:
                partials.done([SimpleNamespace(_edge=root + 1, _roots=(root_of(root, 3),))])
                if root % 3:
                    (partials.fail if root % 3 == 1 else partials.give_up)((root_of(root, 3),), "bolt")
        self.run.begin(batch)
        table = partials.table()
        self.run.record(batch, [] if table is None else [table])

    def has_row(self, batch: int) -> bool:
        return batch % 5 not in (2, 3)

    def read_in(self, batch: int) -> tuple[int, int]:
        """The numbers in the offset of a batch, (start, end]: 0 1, 1 2, 1 2, 2 2, 2 3, and so on."""
        before = batch - (batch % 5 == 2)
        start = sum(map(self.has_row, range(before)))
        return start, start + self.has_row(before)

    def done_in(self, root: int) -> int:
        return root + root % 4

    def last_batch(self) -> int | None:
        return max(map(int, self.offsets), default=None)

    def pending_batch(self) -> int | None:
        last = self.last_batch()
        return None if last is None or str(last) in self.commits else last

    def continued(self) -> tuple[str, int]:
        return "query", 0

    def begin(self, reader: str, read: Any) -> None:
        last = self.last_batch()
        assert (reader, read) == ("query", None if last is None else {"0": self.read_in(last)[1]})

    def hear(self, root: Root, how: str) -> None:
        assert str(self.done_in(root.batch)) in self.commits, "nothing is told before its batch is committed"
        assert (root.start["0"], root.end["0"]) == self.read_in(root.batch)
        self.told.setdefault(root.batch, set()).add(how)

    def ack(self, root: Root) -> None:
        self.hear(root, "ack")

    def fail(self, root: Root, bolt: str) -> None:
        self.hear(root, f"fail {bolt}")

    def give_up(self, root: Root, bolt: str) -> None:
        self.hear(root, f"give_up {bolt}")


@given(st.integers(0, 10**6))
def test_a_spout_hears_of_each_committed_batch_in_one_way_whenever_the_driver_is_killed_and_the_log_stays_short(
    seed: int,
) -> None:
    chance, query = random.Random(seed), Query()
    for batch in range(110):
        query.evaluate(batch)
        while chance.random() < 0.1:
            query.started()
            query.evaluate(batch)
        if chance.random() < 0.1:
            query.run.settle()
        query.commits[str(batch)] = b""
        if chance.random() < 0.1:
            query.started()
        elif chance.random() < 0.1:
            query.run.settle()
        assert len(query.acks) < 55
    query.run.settle()
    how = "ack", "fail bolt", "give_up bolt"
    assert query.told == {
        root: {how[root % 3]} for root in filter(query.has_row, range(110)) if query.done_in(root) < 110
    }
    query.started()
    del query.offsets["109"]
    with pytest.raises(CorruptStateError, match="109 is missing, whose offsets say what batch 109 has read"):
        query.evaluate(110)
