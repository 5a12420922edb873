"""State, KeyValueState: what a stateful task keeps; BufferedState: the same over any store of bytes.

    put, delete -> changes --prepare_commit(n)--> prepared under n --commit(n)--> committed
                      |                                |
                      +----------- rollback -----------+--> gone

Laws
- A reader sees changes, over what is prepared, over what is committed.
- A value is written down when it is put, and read anew at every get: to change what was put, or what `get` gave, changes nothing.
- `commit(n)` makes exactly what `prepare_commit(n)` had current, what was put in between excluded; done twice it is done once.
- After `rollback` the state is the committed one, whatever was prepared. (Storm's in-memory state then *is* the committed map: the
  next put changes what the next rollback brings back.)
- A prepare costs what changed since the last, not what there is.

Source: Storm's `State`, `KeyValueState` and `InMemoryKeyValueState`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from typing import Any, Protocol

from windowing.codec import decode_value, encode_value
from windowing.errors import CheckpointError, CorruptStateError, quote
from windowing.windows.pages import CheckpointedPages

__all__ = [
    "NEVER",
    "BufferedState",
    "Changes",
    "CheckpointedState",
    "KeyValueState",
    "StateProvider",
    "StateStore",
]


NEVER = -1
"""The txid of a state that was never committed."""

Changes = Mapping[bytes, bytes | None]
"""What is put under each key; None: the key is deleted."""


class CheckpointedState(Protocol):
    """What takes part in a checkpoint."""

    def prepare_commit(self, txid: int) -> None:
        """Make what changed durable under `txid`, without making it current."""

    def commit(self, txid: int) -> None:
        """Make what was prepared under `txid` current; nothing happens if it is already."""

    def rollback(self) -> None:
        """Become the state that was committed last."""

    def require(self, txid: int) -> None:
        """Raise CorruptStateError unless the state is that of `txid`, or was never committed."""


class KeyValueState(CheckpointedState, Protocol):
    """Values under keys, both plain data; keys are told apart by type too: 1 and True are two."""

    def get(self, key: Any, default: Any = None) -> Any:
        """Return a copy of the value, or `default`."""

    def put(self, key: Any, value: Any) -> None:
        """Set the value. Raises TypeError for what is not plain data, before anything changes."""

    def delete(self, key: Any) -> Any:
        """Take the key out; return its value, None if there was none."""

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Yield all keys and values, as they are at the first step, in the order of the keys' bytes."""

    def __contains__(self, key: object) -> bool: ...


class StateProvider(Protocol):
    """Where the states of one topology lie, and what else has to be as durable as they are."""

    def state(self, component: str, task: int, name: str = "state") -> KeyValueState:
        """Return the state of a task, always the same object; a task may have several by name."""

    def pages(self, component: str, task: int) -> CheckpointedPages:
        """Return where the window of a task lies that does not fit into memory, always the same object."""

    def record(self, name: str) -> Any:
        """Return what was saved under `name`, None if nothing was."""

    def save_record(self, name: str, data: Any) -> None:
        """Make plain data durable at once, outside of any checkpoint."""

    def forget(self) -> None:
        """Forget what is not prepared, as if the process had ended; the store stays open, for the next cluster."""

    def close(self) -> None:
        """Let go of the store; what is not prepared is gone."""


class StateStore(Protocol):
    """One task's values as bytes. Each entry that writes is atomic and durable: it happens wholly or not at all."""

    @property
    def name(self) -> str:
        """What errors call it."""

    @property
    def committed_txid(self) -> int:
        """The txid committed last, NEVER before the first."""

    @property
    def prepared_txid(self) -> int | None:
        """The txid that is prepared, None if none is."""

    def read(self, key: bytes) -> bytes | None:
        """Return the committed value."""

    def items(self) -> Iterable[tuple[bytes, bytes]]:
        """Yield the committed values, in order of the keys."""

    def prepared(self) -> Changes:
        """Return what is prepared."""

    def prepare(self, txid: int, changes: Changes) -> None:
        """Store all changes under `txid`, in place of whatever is prepared."""

    def commit(self, txid: int) -> None:
        """Make what is prepared current, as of `txid`."""

    def rollback(self) -> None:
        """Forget what is prepared."""


class BufferedState:
    """A KeyValueState over a StateStore; what changed since the last prepare is in memory.

    Cost: a get or put encodes one value (2 us for a number) and reads one; a prepare writes the changes.
    """

    def __init__(self, store: StateStore) -> None:
        self.store = store
        self._changes: dict[bytes, bytes | None] = {}
        self._prepared: Changes = store.prepared()

    @property
    def committed_txid(self) -> int:
        """The txid committed last, NEVER before the first."""
        return self.store.committed_txid

    # -- for the bolt --------------------------------------------------------------------------------------------------

    def get(self, key: Any, default: Any = None) -> Any:
        blob = self._find(encode_value(key))
        return default if blob is None else self._decoded(blob, key)

    def put(self, key: Any, value: Any) -> None:
        self._changes[encode_value(key)] = encode_value(value)

    def delete(self, key: Any) -> Any:
        encoded = encode_value(key)
        blob = self._find(encoded)
        if blob is None:
            return None
        self._changes[encoded] = None
        return self._decoded(blob, key)

    def items(self) -> Iterator[tuple[Any, Any]]:
        over = {**self._prepared, **self._changes}
        under = ((key, blob) for key, blob in self.store.items() if key not in over)
        current = sorted((key, blob) for key, blob in over.items() if blob is not None)
        for encoded, blob in merge(under, current):
            key = decode_value(encoded, f"a key of the state {self.store.name}")
            yield key, self._decoded(blob, key)

    def __contains__(self, key: object) -> bool:
        return self._find(encode_value(key)) is not None

    def _find(self, key: bytes) -> bytes | None:
        for changes in (self._changes, self._prepared):
            if key in changes:
                return changes[key]
        return self.store.read(key)

    def _decoded(self, blob: bytes, key: Any) -> Any:
        return decode_value(blob, f"the value of {quote(key)} in the state {self.store.name}")

    # -- for the checkpoints -------------------------------------------------------------------------------------------

    def prepare_commit(self, txid: int) -> None:
        """Make what changed durable under `txid`. Raises CheckpointError for one that is over, or not the one under way."""
        store = self.store
        if txid <= store.committed_txid:
            raise CheckpointError(
                f"the state {store.name} was told to prepare txid {txid}, but {store.committed_txid} is committed; "
                "the checkpoint record is older than the states: restore both from one copy"
            )
        if store.prepared_txid not in (None, txid):
            raise CheckpointError(
                f"the state {store.name} was told to prepare txid {txid} while {store.prepared_txid} is prepared; "
                "commit that one or roll it back first"
            )
        changes = {**self._prepared, **self._changes}
        store.prepare(txid, changes)
        self._prepared, self._changes = changes, {}

    def commit(self, txid: int) -> None:
        """Make what was prepared under `txid` current. Raises CheckpointError if something else, or nothing, was prepared."""
        store = self.store
        if txid == store.committed_txid and store.prepared_txid is None:
            return
        if txid != store.prepared_txid:
            raise CheckpointError(
                f"the state {store.name} was told to commit txid {txid}, but prepared is {store.prepared_txid} and "
                f"committed {store.committed_txid}; restore states and checkpoint record from one copy"
            )
        store.commit(txid)
        self._prepared = {}

    def rollback(self) -> None:
        """Become the state that was committed last."""
        self.store.rollback()
        self._changes, self._prepared = {}, {}

    def forget(self) -> None:
        """Forget what is not prepared."""
        self._changes, self._prepared = {}, self.store.prepared()

    def require(self, txid: int) -> None:
        """Raise CorruptStateError unless this is the state as of `txid`, or was never committed (a task that is new)."""
        found = self.store.committed_txid
        if found not in (txid, NEVER):
            raise CorruptStateError(
                f"the state {self.store.name} is that of txid {found}, but the topology goes on from {txid}; part of it was "
                "restored from another copy, or lost: restore all from one; nothing was reset"
            )
