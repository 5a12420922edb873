"""Stores of Trident's states, and of windows that are bigger than memory.

    map_state(store, name)         a state of keys and values, for `persistent_aggregate` -> MapStateFactory
    snapshot_state(store, name)    a state of a single value -> SnapshotFactory
    state_table(store, name, cols) a state that other programs read as a view with typed columns -> MapStateFactory
    store_of(address)              the store at a path, postgresql://..., redis://... or memory:
    MemoryStore, SqliteStore       stores without further dependencies
    PostgresStore, RedisStore      stores on a server, by psycopg and redis (extras `postgres`, `redis`)
    Store                          the protocol of a store, for your own
    SqlitePages                    pages of a persistent window in a file
    SqliteRecordStore              the records of Trident's coordinators and spouts in a file, for `records=`

Each name is loaded on first use, so a server's client is needed only if its store is used, and a windowed bolt loads no Trident.
"""

from typing import TYPE_CHECKING

from windowing.optional import getattr_of, installed

if TYPE_CHECKING:
    from windowing.stores.factory import MapStateFactory, Store, map_state, snapshot_state, state_table, store_of
    from windowing.stores.memory import MemoryStore
    from windowing.stores.pages import SqlitePages
    from windowing.stores.postgres import PostgresStore
    from windowing.stores.redis import RedisStore
    from windowing.stores.sqlite import SqliteRecordStore, SqliteStore
    from windowing.trident.maps import SnapshotFactory

__all__ = [
    "MapStateFactory",
    "MemoryStore",
    "PostgresStore",
    "RedisStore",
    "SnapshotFactory",
    "SqlitePages",
    "SqliteRecordStore",
    "SqliteStore",
    "Store",
    "map_state",
    "snapshot_state",
    "state_table",
    "store_of",
]

if not TYPE_CHECKING:
    __getattr__ = getattr_of(
        __name__,
        dict.fromkeys(__all__, "stores.factory")
        | {
            "MemoryStore": "stores.memory",
            "PostgresStore": "stores.postgres",
            "RedisStore": "stores.redis",
            "SqlitePages": "stores.pages",
            "SqliteRecordStore": "stores.sqlite",
            "SqliteStore": "stores.sqlite",
        },
    )
    __all__ = installed(__all__, {"PostgresStore": "psycopg", "RedisStore": "redis"})
