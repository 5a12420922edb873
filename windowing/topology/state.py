"""KeyValueState: the state of a stateful task; EncodedState: the changes in memory; BufferedState: both over a store of bytes.

    put, delete -> changes --prepare_commit(n)--> prepared under n --commit(n)--> committed
                      |                                |
                      +----------- rollback -----------+--> gone

Laws
- A read returns the value in changes, else the prepared one, else the committed one.
- A value is encoded when it is put, and decoded at every get: mutating an object that was put, or that `get` returned, has no
  effect.
- `commit(n)` makes exactly the data of `prepare_commit(n)` current, without values put since then; a second call has no effect.
- After `rollback` the state is the committed one, whatever was prepared. (In Storm's in-memory state the committed map itself is
  restored, so the next put changes the data of the next rollback.)
- A call of the bolt counts as a whole or not at all: `undo` reverts the writes since `begin`.
- A prepare costs the changes since the last one, not the size of the state.

Source: Storm's `State`, `KeyValueState` and `InMemoryKeyValueState`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from typing import Any, ClassVar, Protocol

from windowing.codec import decode_value, encode_value
from windowing.errors import CheckpointError, ConfigError, CorruptStateError, quote
from windowing.schema.checks import StormNames
from windowing.windows.pages import CheckpointedPages

NEVER = -1
"""The txid of a state that has never been committed."""

Changes = Mapping[bytes, bytes | None]
"""The new value of each key; None means that the key is deleted."""


def recorded(txid: int) -> str:
    """Return what the record of the checkpoints has, for an error about a part that has something else."""
    return "has no checkpoint: its record is missing or empty" if txid == NEVER else f"goes on from {txid}"


class CheckpointedState(Protocol):
    """A part of a task that takes part in checkpoints: a key-value state, or its windows."""

    @abstractmethod
    def prepare_commit(self, txid: int) -> None:
        """Make the changes durable under `txid`, but not current."""

    @abstractmethod
    def commit(self, txid: int) -> None:
        """Make the data prepared under `txid` current; no effect if they already are."""

    @abstractmethod
    def rollback(self) -> None:
        """Restore the state that was committed last."""


class KeyValueState(CheckpointedState, Protocol):
    """The state that `init_state` of a bolt gets: values by key, both plain data. A bolt calls get, put, delete, items and `in`.

    Keys of different types are different: 1 and True are two. A driver calls the other methods.
    """

    @abstractmethod
    def require(self, txid: int) -> None:
        """Raise CorruptStateError unless the state is that of `txid`, or has never been committed."""

    @abstractmethod
    def get(self, key: Any, default: Any = None) -> Any:
        """Return a copy of the value, or `default`."""

    @abstractmethod
    def put(self, key: Any, value: Any) -> None:
        """Set the value. Raises TypeError, before any change, for a value that is not plain data."""

    @abstractmethod
    def delete(self, key: Any) -> Any:
        """Delete the key; return its value, None if there was none."""

    @abstractmethod
    def items(self) -> Iterator[tuple[Any, Any]]:
        """Yield all keys and values, as of the first step, in the order of the keys' bytes."""

    @abstractmethod
    def __contains__(self, key: object) -> bool: ...

    @abstractmethod
    def begin(self) -> None:
        """Begin a call of the bolt."""

    @abstractmethod
    def undo(self) -> None:
        """Revert all puts and deletes since `begin`, because the call failed and the run goes on without it."""


def require_undo(who: str, state: Any) -> None:
    """Raise ConfigError for a state of a user's own provider that cannot revert what a failed call has written."""
    if not (hasattr(state, "begin") and hasattr(state, "undo")):
        raise ConfigError(
            f"{who} has the state {quote(state)}, which has no begin() and undo(): they revert what a call of the bolt wrote "
            "before it failed; add them, as KeyValueState says"
        )


class StateProvider(Protocol):
    """Opens the states of one topology, and stores its other durable records.

    It may also have `transaction()`: a context manager that makes all writes in it durable together, at its end, or none. A
    checkpoint then costs two transactions; else two writes for each task and two records.
    """

    @abstractmethod
    def state(self, component: str, task: int, name: str = "state") -> KeyValueState:
        """Return the state of a task, always the same object; a task may have several, by name."""

    @abstractmethod
    def pages(self, component: str, task: int) -> CheckpointedPages:
        """Return the page store of a task's window on disk, always the same object."""

    @abstractmethod
    def record(self, name: str) -> Any:
        """Return the record saved under `name`, None if there is none."""

    @abstractmethod
    def save_record(self, name: str, data: Any) -> None:
        """Make plain data durable at once, outside of any checkpoint."""

    @abstractmethod
    def forget(self) -> None:
        """Discard all that is not prepared, as if the process had ended; the store stays open for the next cluster."""

    @abstractmethod
    def close(self) -> None:
        """Close the store; all that is not prepared is lost."""


class StateStore(Protocol):
    """One task's values as bytes. Each write is atomic and durable."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the store in errors."""

    @property
    @abstractmethod
    def committed_txid(self) -> int:
        """The txid that was committed last, NEVER before the first."""

    @property
    @abstractmethod
    def prepared_txid(self) -> int | None:
        """The txid that is prepared, None if there is none."""

    @abstractmethod
    def read(self, key: bytes) -> bytes | None:
        """Return the committed value."""

    @abstractmethod
    def items(self) -> Iterable[tuple[bytes, bytes]]:
        """Yield the committed values, in order of the keys."""

    @abstractmethod
    def prepared(self) -> Changes:
        """Return the prepared changes."""

    @abstractmethod
    def prepare(self, txid: int, changes: Changes) -> None:
        """Store all changes under `txid`; they replace earlier prepared ones."""

    @abstractmethod
    def commit(self, txid: int) -> None:
        """Make the prepared changes current, as of `txid`."""

    @abstractmethod
    def rollback(self) -> None:
        """Delete the prepared changes."""


class EncodedState(StormNames):
    """The base of states whose changes are in memory, encoded. Cost: a get or put encodes one value (2 us) and reads one."""

    _elsewhere: ClassVar[Mapping[str, str]] = {
        "getOrDefault": "get(key, default)",
        "iterator keys values": "items()",
        "pop remove": "delete(key)",
        "setdefault update incr": "put(key, value)",
    }

    def __init__(self) -> None:
        self._changes: dict[bytes, bytes | None] = {}
        # From the first `begin`: by key written since, whether it was in `_changes`, and its value there.
        self._before: dict[bytes, tuple[bool, bytes | None]] | None = None

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key, `default` if there is none."""
        blob = self._found(encode_value(key))
        return default if blob is None else self._decoded(blob, key)

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a key. Raises TypeError for a value that is not plain data."""
        encoded, blob = encode_value(key), encode_value(value)
        self._set(encoded, blob)

    def delete(self, key: Any) -> Any:
        """Remove a key; return the value that it had, or None."""
        encoded = encode_value(key)
        blob = self._found(encoded)
        if blob is None:
            return None
        self._set(encoded, None)
        return self._decoded(blob, key)

    def __contains__(self, key: object) -> bool:
        return self._found(encode_value(key)) is not None

    def begin(self) -> None:
        self._before = {}

    def undo(self) -> None:
        for encoded, (changed, blob) in (self._before or {}).items():
            if changed:
                self._changes[encoded] = blob
            else:
                del self._changes[encoded]
        self._before = {}

    def _set(self, encoded: bytes, blob: bytes | None) -> None:
        if self._before is not None and encoded not in self._before:
            self._before[encoded] = (encoded in self._changes, self._changes.get(encoded))
        self._changes[encoded] = blob

    def _found(self, encoded: bytes) -> bytes | None:
        """Return the encoded value of an encoded key, None if there is none."""
        raise NotImplementedError

    def _decoded(self, blob: bytes, key: Any) -> Any:
        raise NotImplementedError


class BufferedState(EncodedState):
    """A KeyValueState over a StateStore; changes since the last prepare are in memory. Cost: a prepare writes the changes."""

    def __init__(self, store: StateStore) -> None:
        super().__init__()
        self.store = store
        self._prepared: Changes = store.prepared()

    # -- for the bolt --------------------------------------------------------------------------------------------------

    def items(self) -> Iterator[tuple[Any, Any]]:
        over = {**self._prepared, **self._changes}
        under = ((key, blob) for key, blob in self.store.items() if key not in over)
        current = sorted((key, blob) for key, blob in over.items() if blob is not None)
        for encoded, blob in merge(under, current):
            key = decode_value(encoded, f"a key of the state {self.store.name}")
            yield key, self._decoded(blob, key)

    def _found(self, encoded: bytes) -> bytes | None:
        for changes in (self._changes, self._prepared):
            if encoded in changes:
                return changes[encoded]
        return self.store.read(encoded)

    def _decoded(self, blob: bytes, key: Any) -> Any:
        try:
            return decode_value(blob, "a value")
        except CorruptStateError:  # again with its name, which costs as much as decoding
            return decode_value(blob, f"the value of {quote(key)} in the state {self.store.name}")

    # -- for the checkpoints -------------------------------------------------------------------------------------------

    def prepare_commit(self, txid: int) -> None:
        """Make the changes durable under `txid`. Raises CheckpointError if `txid` is committed, or another one is prepared."""
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
        self._prepared, self._changes, self._before = changes, {}, None

    def commit(self, txid: int) -> None:
        """Make the data prepared under `txid` current. Raises CheckpointError if another txid, or none, is prepared."""
        store = self.store
        if txid == store.committed_txid and store.prepared_txid is None:
            return
        if txid != store.prepared_txid:
            prepared = "none" if store.prepared_txid is None else store.prepared_txid
            committed = "none" if store.committed_txid == NEVER else store.committed_txid
            raise CheckpointError(
                f"the state {store.name} was told to commit txid {txid}, but prepared is {prepared} and committed {committed}; "
                "restore states and checkpoint record from one copy"
            )
        store.commit(txid)
        self._prepared = {}

    def rollback(self) -> None:
        self.store.rollback()
        self._prepared, self._changes, self._before = {}, {}, None

    def forget(self) -> None:
        self._prepared, self._changes, self._before = self.store.prepared(), {}, None

    def require(self, txid: int) -> None:
        found = self.store.committed_txid
        if found not in (txid, NEVER):
            raise CorruptStateError(
                f"the state {self.store.name} is that of txid {found}, but the topology {recorded(txid)}; part of it was "
                "restored from another copy, or lost: restore all from one; nothing was reset"
            )
