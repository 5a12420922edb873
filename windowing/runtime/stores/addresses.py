"""store_of: a store by its address, for commands and settings. What an address needs is imported when it is given.

memory:                            a MemoryStore of its own
sqlite:counts.db, counts.db        a file, relative to the working folder; sqlite:/data/counts.db an absolute one
postgresql://user:password@host/db     extra `postgres`
redis://:password@host:6379/0          extra `redis`; rediss:// and unix:// too
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from windowing.errors import ConfigError, shown
from windowing.runtime.stores.factory import Store
from windowing.runtime.stores.memory import MemoryStore
from windowing.runtime.stores.remote import masked
from windowing.runtime.stores.sqlite import SqliteStore

__all__ = ["store_of"]

_REMOTE = {
    "postgresql": ("postgres", "PostgresStore"),
    "postgres": ("postgres", "PostgresStore"),
    "redis": ("redis", "RedisStore"),
    "rediss": ("redis", "RedisStore"),
    "unix": ("redis", "RedisStore"),
}


def store_of(address: str | os.PathLike[str]) -> Store:
    """Return the store at an address. Raises ConfigError for one that is none, or whose extra is not installed.

    >>> store_of("postgresql://me:secret@127.0.0.1/db")
    PostgresStore('postgresql://me:***@127.0.0.1/db')
    """
    if not isinstance(address, str | os.PathLike):
        raise ConfigError(
            f"the address of a store is text, got {shown(address)}; give the path of a SQLite file, postgresql://..., redis://... "
            "or memory:"
        )
    scheme, colon, rest = str(address).partition(":")
    if scheme == "memory" and colon and not rest:
        return MemoryStore()
    if rest.startswith("//") and scheme in _REMOTE:
        return _remote(str(address), *_REMOTE[scheme])
    path = rest if scheme == "sqlite" and colon else str(address)
    if not path or "://" in path or path.startswith("//"):
        raise ConfigError(
            f"there is no store at {shown(masked(str(address)))}; give the path of a SQLite file, postgresql://..., redis://... "
            "or memory:"
        )
    return SqliteStore(path)


def _remote(address: str, module: str, name: str) -> Store:
    try:
        store: Any = getattr(import_module(f"windowing.runtime.stores.{module}"), name)
    except ModuleNotFoundError as problem:
        raise ConfigError(
            f"the store at {masked(address)} needs the package {problem.name}; install windowing[{module}]"
        ) from problem
    made: Store = store(address)
    return made
