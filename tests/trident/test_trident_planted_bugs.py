"""The random histories detect bugs: each planted bug is found quickly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.trident.test_trident_random_histories import InMemory
from windowing.errors import WindowingError
from windowing.stores.memory import MemoryMap
from windowing.trident import fence, maps
from windowing.trident.fence import RULES, Claim, Fence, StateRow, Verdict
from windowing.trident.kinds import StateType
from windowing.trident.maps import CachedBatchReadsMap, CachedMap

Plant = Callable[[pytest.MonkeyPatch], None]


def no_fence_in_the_store(patch: pytest.MonkeyPatch) -> None:
    put = MemoryMap.multi_put

    def unfenced(self: MemoryMap, rows: Mapping[bytes, StateRow | None], claim: Claim | None = None) -> Fence | None:
        return put(self, rows, claim and Claim(self._partition.fence, claim.fence))

    patch.setattr(MemoryMap, "multi_put", unfenced)


def rows_without_their_fence(patch: pytest.MonkeyPatch) -> None:
    """The rows are written, then the process may die, then the fence: two operations."""
    counted = CachedBatchReadsMap._counted

    def torn(self: CachedBatchReadsMap, reading: Any, changes: Any) -> int | None:
        self._backing.multi_put(changes, None)
        return counted(self, reading, changes)

    patch.setattr(CachedBatchReadsMap, "_counted", torn)  # the last step before the write


def a_retry_adds_to_the_current_value(patch: pytest.MonkeyPatch) -> None:
    adds_again(patch, Verdict.RETRY)


def a_repeated_attempt_adds_again(patch: pytest.MonkeyPatch) -> None:
    adds_again(patch, Verdict.DONE)


def adds_again(patch: pytest.MonkeyPatch, verdict: Verdict) -> None:
    """The batch adds to the values in the store, and not to those before it, and writes them."""
    for kind in (StateType.OPAQUE, StateType.TRANSACTIONAL):
        patch.setitem(RULES, (verdict, kind), RULES[Verdict.NEW, kind])
    patch.setattr(maps, "base", lambda row, txid: None if row is None else row.value)


def only_repeated_keys_are_undone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(maps, "undone", lambda left: {})


def an_empty_partition_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    commit = CachedBatchReadsMap.commit
    patch.setattr(CachedBatchReadsMap, "commit", lambda self: commit(self) if self.written else None)


def the_previous_value_is_that_of_the_last_attempt(patch: pytest.MonkeyPatch) -> None:
    def put(self: CachedBatchReadsMap, values: Any) -> None:
        stored = {key: self.stored(key) for key in values}
        old = {key: None if row is None else row.value for key, row in stored.items()}
        self.written |= {key: StateRow(self.txid, value, old[key]) for key, value in values.items()}

    patch.setattr(CachedBatchReadsMap, "put", put)


def only_the_last_update_of_a_key_is_applied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CachedBatchReadsMap, "value", lambda self, key: fence.base(self.stored(key), self.txid))


def attempts_of_a_txid_are_not_distinguished(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        fence, "judge", lambda found, mine: Verdict.NEW if not found or found.txid < mine.txid else Verdict.DONE
    )


def a_cache_keeps_rows_of_an_older_fence(patch: pytest.MonkeyPatch) -> None:
    get = CachedMap.multi_get

    def kept(self: CachedMap, keys: Any, undo: Any = None) -> Any:
        if self._known:
            self._fence = self.beneath.multi_get([]).fence
        return get(self, keys, undo)

    patch.setattr(CachedMap, "multi_get", kept)


ANY, OPAQUE, TRANSACTIONAL = tuple(StateType)[1:], (StateType.OPAQUE,), (StateType.TRANSACTIONAL,)
PLANTED: list[tuple[Plant, tuple[StateType, ...], int]] = [
    (no_fence_in_the_store, ANY, 0),
    (rows_without_their_fence, ANY, 0),
    (a_retry_adds_to_the_current_value, ANY, 0),
    (a_repeated_attempt_adds_again, ANY, 0),
    (only_repeated_keys_are_undone, OPAQUE, 0),
    (an_empty_partition_is_not_committed, OPAQUE, 0),
    (the_previous_value_is_that_of_the_last_attempt, OPAQUE, 0),
    (only_the_last_update_of_a_key_is_applied, ANY, 0),
    (attempts_of_a_txid_are_not_distinguished, OPAQUE, 0),
    (a_cache_keeps_rows_of_an_older_fence, OPAQUE, 2),
]


def planted() -> Iterator[Any]:
    for plant, kinds, cache in PLANTED:
        for kind in kinds:
            yield pytest.param(plant, kind, cache, id=f"{plant.__name__}-{kind.value}")


@pytest.mark.crash
@pytest.mark.parametrize(("plant", "kind", "cache"), list(planted()))
def test_the_random_histories_find_a_planted_bug(
    plant: Plant, kind: StateType, cache: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    world = type("World", (InMemory,), {"kind": kind, "cache": cache})
    search = settings(
        max_examples=2000, stateful_step_count=40, phases=[Phase.generate], database=None, print_blob=False,
        report_multiple_bugs=False,
    )  # fmt: skip
    with pytest.raises((AssertionError, WindowingError)):
        run_state_machine_as_test(world, settings=search)
