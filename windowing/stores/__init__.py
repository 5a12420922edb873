"""Stores of Trident states: in memory, in a SQLite file, in PostgreSQL, in Redis. Nothing is loaded that is not used."""

from windowing.stores.factory import MapStateFactory, SnapshotFactory, Store, map_state, snapshot_state, store_of
from windowing.stores.memory import MemoryStore
from windowing.stores.sqlite import SqliteStore

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
