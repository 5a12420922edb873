"""Stores of Trident states: in memory, in a SQLite file, in PostgreSQL, in Redis. Nothing is loaded that is not used."""

from windowing.runtime.stores.addresses import store_of
from windowing.runtime.stores.factory import MapStateFactory, SnapshotFactory, Store, map_state, snapshot_state
from windowing.runtime.stores.memory import MemoryStore
from windowing.runtime.stores.sqlite import SqliteStore

__all__ = [
    "MapStateFactory",
    "MemoryStore",
    "SnapshotFactory",
    "SqliteStore",
    "Store",
    "map_state",
    "snapshot_state",
    "store_of",
]
