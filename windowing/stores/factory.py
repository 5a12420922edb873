"""States by name and stores by address: map_state, snapshot_state, state_table, store_of.

    map_state(SqliteStore("counts.db"), "counts")  --make_state(0, partitions=2)-->  OpaqueMap > [CachedMap >] rows in the file

A factory of states is plain data (for a memory store, the store itself) and opens nothing before it makes a state, so it can be
sent to other processes. `store_of` makes a store from an address, for commands and settings; a client is imported only for its
address:

    memory:                                a MemoryStore of its own
    sqlite:counts.db, counts.db            a file, relative to the working folder; sqlite:/data/counts.db an absolute one
    postgresql://user:password@host/db     extra `postgres`; also host=... dbname=... password=..., as libpq takes it
    redis://:password@host:6379/0          extra `redis`; rediss:// and unix:// too
"""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from contextlib import closing
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import PurePath
from typing import Any, Protocol, cast

from windowing.errors import ConfigError, quote
from windowing.schema.checks import checked_name, spelled, uncallable
from windowing.stores.memory import MemoryStore
from windowing.stores.remote import masked
from windowing.stores.sqlite import SqliteStore
from windowing.stores.state_tables import TableCodec
from windowing.trident.fence import (
    LEDGER,
    AttemptLedger,
    BackingMap,
    Fence,
    Owner,
    PartitionId,
    checked_state_name,
    counted,
)
from windowing.trident.kinds import StateType, TransactionAttempt
from windowing.trident.maps import MAPS, CachedMap, SnapshotFactory
from windowing.trident.states import MapState, StateCodec, TypedJson

_CODEC = {"encode": ("value",), "decode": ("blob", "what")}
"""The methods of a codec, with their arguments."""


class Store(Protocol):
    """A store of states, each under its own name.

    It may also have `identity(state)`: a tuple of plain values that is equal for all objects that reach the same rows. Without it
    stores are compared by `==`. And `files`: the paths of its files, which Spark's workers must see; or `in_this_process = True` if
    its rows are in the memory of the process: Spark refuses it.
    """

    @abstractmethod
    def open(self, place: PartitionId) -> BackingMap:
        """Return the rows of one partition."""


@dataclass(frozen=True)
class MapStateFactory:
    """Makes the partitions of one map state. `cache`: the number of rows of each partition that are cached between batches.
    `owner`: the owner of the commits, set by the runtime of a topology; None for a state used by hand."""

    store: Store
    name: str
    kind: StateType
    codec: StateCodec
    cache: int = 0
    owner: Owner | None = None

    def __post_init__(self) -> None:
        checked_state_name(self.name)
        if isinstance(self.store, str | PurePath) or not callable(getattr(self.store, "open", None)):
            raise ConfigError(
                f"the store of the state {self.name} is a MemoryStore, a SqliteStore, ..., got {quote(self.store)}; give one, or "
                "store_of(address)"
            )
        if not isinstance(self.kind, StateType):
            raise ConfigError(
                f"the kind of the state {self.name} must be a StateType, got {quote(self.kind)}; give StateType.OPAQUE, for one"
            )
        lacking = [method for method in _CODEC if not callable(getattr(self.codec, method, None))]
        if not isinstance(getattr(self.codec, "name", None), str):
            lacking.insert(0, "a text as name")
        if lacking or isinstance(self.codec, type):
            way_out = f"let it have {', '.join(lacking)}" if lacking else "give an object of this class"
            raise ConfigError(
                f"the codec of the state {self.name} is an object with name, encode and decode, got {quote(self.codec)}; "
                f"{way_out}, or give TypedJson()"
            )
        for method, arguments in _CODEC.items():
            problem = uncallable(getattr(self.codec, method), arguments)
            if problem is not None:
                raise ConfigError(f"the codec of the state {self.name}: {method} {problem}")
        if type(self.cache) is not int or self.cache < 0:
            raise ConfigError(
                f"the state {self.name} was to cache {quote(self.cache)} rows; give a whole number, 0 or more"
            )

    def make_state(self, partition: int, partitions: int) -> MapState:
        """Return partition number `partition`, from 0, of `partitions`."""
        if not 0 <= partition < partitions:
            raise ConfigError(
                f"the state {self.name} has no partition {partition} of {partitions}; they are numbered from 0"
            )
        backing = self.store.open(PartitionId(self.name, partition, partitions))
        if getattr(backing, "place", None) is None:
            raise ConfigError(
                f"the rows that the store of the state {self.name} has opened have no place, got {quote(backing)}; let them "
                "have the argument of open: self.place = place"
            )
        return MAPS[self.kind](CachedMap(backing, self.cache) if self.cache else backing, self.codec, self.owner)

    @property
    def identity(self) -> tuple[Any, ...]:
        """The identity of the state: equal for all factories of one state in one store."""
        own = getattr(self.store, "identity", None)
        return own(self.name) if callable(own) else (self.store, self.name)

    def owned_by(self, owner: Owner) -> MapStateFactory:
        """Return the factory with this owner as writer."""
        return replace(self, owner=owner)

    def rows(self, partition: int, partitions: int) -> BackingMap:
        """Return the rows of a partition, or of the ledger, over a new connection; the caller closes it."""
        return self.store.open(PartitionId(self.name, partition, partitions))

    def stored(self, partitions: int) -> list[tuple[PartitionId, Fence | None, int]]:
        """Return the fence and the number of rows of the ledger and of each partition. Cost: one connection and count for each."""
        found = []
        for partition in (LEDGER, *range(partitions)):
            with closing(self.rows(partition, partitions)) as rows:
                found.append((rows.place, *counted(rows)))
        return found

    def mark(self, partitions: int) -> None:
        """Record that the state was begun, for a state whose rows have no fence; an existing mark stays."""
        with closing(self.ledger(partitions)) as ledger:
            ledger.mark()

    def ledger(self, partitions: int) -> AttemptLedger:
        """Return the ledger of attempts, over a new connection; the caller closes it."""
        return AttemptLedger(self.rows(LEDGER, partitions), self.kind, self.codec.name, self.owner)

    def claim_attempt(self, txid: int, partitions: int, at_least: int = 0) -> TransactionAttempt:
        """Claim the next attempt at a batch, durably; its number is at least `at_least`. For drivers without a coordinator, before
        the attempt begins."""
        with closing(self.ledger(partitions)) as ledger:
            return ledger.claim(txid, at_least)


@spelled
def map_state(
    store: Store, name: str, kind: StateType = StateType.OPAQUE, *, codec: StateCodec | None = None, cache: int = 0
) -> MapStateFactory:
    """Return a state of values by key in a store, for `persistent_aggregate` and `partition_persist`.

    name: of the state in its store. kind: see StateType. codec: how keys and values become bytes. cache: rows of each partition
    that are kept in memory between batches. Raises ConfigError for a name that cannot be part of a table or key name.

    >>> from windowing.stores import MemoryStore
    >>> from windowing.trident import ReplaceUpdater, TransactionAttempt
    >>> counts, first = map_state(MemoryStore(), "counts").make_state(0, partitions=1), TransactionAttempt(1, 0)
    >>> counts.begin_commit(first); _ = counts.multi_update([("JFK",)], [ReplaceUpdater(3)]); counts.commit(first)
    >>> counts.multi_get([("JFK",), ("LGA",)])
    [3, None]
    """
    return MapStateFactory(store, name, kind, TypedJson() if codec is None else codec, cache)


@spelled
def snapshot_state(
    store: Store, name: str, kind: StateType = StateType.OPAQUE, *, codec: StateCodec | None = None
) -> SnapshotFactory:
    """Return a state of a single value; the arguments are those of `map_state`."""
    return SnapshotFactory(map_state(store, name, kind, codec=codec))


@spelled
def state_table(
    store: Store, name: str, columns: str, kind: StateType = StateType.OPAQUE, *, cache: int = 0
) -> MapStateFactory:
    """Return a map state whose rows other programs read as the view `name` with these columns: those of the key, then the value.

    The store is a SqliteStore or a PostgresStore; the state's name is `<name>_state`. Raises ConfigError for other stores, and for
    a type without a column type.

    >>> state_table(SqliteStore("counts.db"), "counts", "origin string, flights bigint").name
    'counts_state'
    """
    checked_name(name, "a table's name")
    codec = TableCodec(columns)
    state = f"{name}_state"
    if not hasattr(store, "view"):
        raise ConfigError(
            f"a table lies in a SqliteStore or a PostgresStore, got {quote(store)}; give one, or read the state of another store "
            "by map_state(...).make_state(...).items()"
        )
    shown: Any = replace(cast(Any, store), view=codec.view(state, name))
    return MapStateFactory(shown, state, kind, codec, cache)


# -- store_of --------------------------------------------------------------------------------------------------------------------


REMOTE = {
    "postgresql": ("postgres", "PostgresStore"),
    "postgres": ("postgres", "PostgresStore"),
    "redis": ("redis", "RedisStore"),
    "rediss": ("redis", "RedisStore"),
    "unix": ("redis", "RedisStore"),
}
"""By scheme: the module, which is also the name of the extra, and the class of the store."""
_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?P<rest>.*)", re.DOTALL)
"""A single letter is the drive of a path."""
_SETTINGS = re.compile(r"\s*(?:host|hostaddr|port|dbname|user|password|passfile|service)\s*=")
"""How an address in libpq's form begins; a file of such a name is sqlite:NAME."""


def server_of(address: str) -> tuple[str, str] | None:
    """Return the module and the class of the store at the address of a server, None for any other address."""
    if _SETTINGS.match(address):
        return REMOTE["postgresql"]
    scheme, sign, _ = address.partition("://")
    return REMOTE.get(scheme) if sign else None


def store_of(address: str | os.PathLike[str]) -> Store:
    """Return the store at an address. Raises ConfigError for an invalid address, or if its extra is not installed.

    >>> store_of("postgresql://me:secret@127.0.0.1/db")
    PostgresStore('postgresql://me:***@127.0.0.1/db')
    """
    if not isinstance(address, str | os.PathLike):
        raise ConfigError(
            f"the address of a store is text, got {quote(address)}; give the path of a SQLite file, postgresql://..., redis://... "
            "or memory:"
        )
    server = server_of(text := str(address))
    found = _URI.fullmatch(text)
    scheme, rest = ("sqlite", text) if found is None else (found["scheme"], found["rest"])
    if scheme == "memory" and not rest:
        return MemoryStore()
    if server is not None:
        module, name = server
        try:
            kind: Any = getattr(import_module(f"windowing.stores.{module}"), name)
        except ModuleNotFoundError as problem:
            raise ConfigError(
                f"the store at {masked(text)} needs the package {problem.name}; install windowing[{module}]"
            ) from problem
        return cast(Store, kind(text))
    if scheme == "sqlite" and rest and "://" not in rest and not rest.startswith("//"):
        return SqliteStore(rest)
    # A malformed address may hold a password where `masked` does not look for one.
    shown = quote(masked(text)) if "://" in text or "@" not in text else f"{scheme}:... (the rest may hold a password)"
    why = "" if scheme in (*REMOTE, "sqlite", "memory") else f": {quote(scheme)} is no scheme of a store"
    raise ConfigError(
        f"there is no store at {shown}{why}; give the path of a SQLite file (sqlite:PATH if it begins with a word and a colon), "
        "postgresql://..., redis://... or memory:"
    )
