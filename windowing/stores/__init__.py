"""Stores of Trident's states, and of windows that are bigger than memory.

    map_state(store, name)         a state of keys and values, for `persistent_aggregate` -> MapStateFactory
    snapshot_state(store, name)    a state of a single value -> SnapshotFactory
    state_table(store, name, cols) a state that other programs read as a view with typed columns -> MapStateFactory
    store_of(address)              the store at a path, postgresql://..., redis://... or memory:
    MemoryStore, SqliteStore       stores without further dependencies
    PostgresStore, RedisStore      stores on a server, by psycopg and redis (extras `postgres`, `redis`)
    Store                          the protocol of a store, for your own
    SqlitePages                    pages of a persistent window in a file

Each name is loaded on first use, so a server's client is needed only if its store is used, and a windowed bolt loads no Trident.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from windowing.schema.checks import with_extra

if TYPE_CHECKING:
    from windowing.stores.factory import (
        MapStateFactory,
        Store,
        map_state,
        snapshot_state,
        state_table,
        store_of,
    )
    from windowing.stores.memory import MemoryStore
    from windowing.stores.pages import SqlitePages
    from windowing.stores.postgres import PostgresStore
    from windowing.stores.redis import RedisStore
    from windowing.stores.sqlite import SqliteStore
    from windowing.trident.maps import SnapshotFactory

__all__ = [
    "MapStateFactory",
    "MemoryStore",
    "PostgresStore",
    "RedisStore",
    "SnapshotFactory",
    "SqlitePages",
    "SqliteStore",
    "Store",
    "map_state",
    "snapshot_state",
    "state_table",
    "store_of",
]

_MODULES = {
    "MemoryStore": "memory",
    "PostgresStore": "postgres",
    "RedisStore": "redis",
    "SqlitePages": "pages",
    "SqliteStore": "sqlite",
}

_NEEDED = {"PostgresStore": "psycopg", "RedisStore": "redis"}

_NAMES = frozenset(__all__)

if not TYPE_CHECKING:  # `import *` would fail for the first name whose package is not installed
    __all__ = [name for name in __all__ if name not in _NEEDED or find_spec(_NEEDED[name]) is not None]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'factory')}"), name)
    except ModuleNotFoundError as problem:
        raise with_extra(problem, f"{__name__}.{name}") from problem
