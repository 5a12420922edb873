"""StateProviders: where the states of a topology lie. In memory, for one process; in one SQLite file, for longer.

    provider     states live as long as     a checkpoint is                             windows bigger than memory
    memory       the provider               two dicts                                   temporary files
    sqlite       the file                   two transactions a task (state_file.py)     a file for each task, beside it

Source: Storm's `InMemoryKeyValueStateProvider`; its Redis and HBase providers are a file here.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from windowing.core.codec import decode_value, encode_value
from windowing.errors import ConfigError, shown
from windowing.runtime.pages import SqlitePages
from windowing.runtime.state_file import StateFile
from windowing.transactions.state import NEVER, BufferedState, Changes, StateProvider, StateStore

__all__ = ["MemoryStateProvider", "SqliteStateProvider", "state_provider"]


class MemoryStore:
    """One task's values in a dict. A commit puts new values into it, a rollback does not touch it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.committed_txid = NEVER
        self.prepared_txid: int | None = None
        self._committed: dict[bytes, bytes] = {}
        self._prepared: Changes = {}

    def read(self, key: bytes) -> bytes | None:
        return self._committed.get(key)

    def items(self) -> Iterable[tuple[bytes, bytes]]:
        return sorted(self._committed.items())

    def prepared(self) -> Changes:
        return dict(self._prepared)

    def prepare(self, txid: int, changes: Changes) -> None:
        self._prepared, self.prepared_txid = dict(changes), txid

    def commit(self, txid: int) -> None:
        for key, value in self._prepared.items():
            if value is None:
                self._committed.pop(key, None)
            else:
                self._committed[key] = value
        self._prepared, self.prepared_txid, self.committed_txid = {}, None, txid

    def rollback(self) -> None:
        self._prepared, self.prepared_txid = {}, None


class _Provider:
    """What providers share: one state object for each task and name, and one file of pages for each window on disk."""

    def __init__(self) -> None:
        self._states: dict[str, BufferedState] = {}
        self._pages: dict[tuple[str, int], SqlitePages] = {}

    def state(self, component: str, task: int, name: str = "state") -> BufferedState:
        """Return the state of a task, always the same object."""
        full = f"{component}/{task}/{name}"
        if full not in self._states:
            self._states[full] = BufferedState(self._store(full))
        return self._states[full]

    def pages(self, component: str, task: int) -> SqlitePages:
        """Return the pages of a task's window, always the same object."""
        if (component, task) not in self._pages:
            self._pages[component, task] = SqlitePages(self._page_file(component, task))
        return self._pages[component, task]

    def forget(self) -> None:
        """Forget what is not prepared; pages that no manifest names are deleted when their window begins again."""
        for state in self._states.values():
            state.forget()

    def _store(self, name: str) -> StateStore:
        raise NotImplementedError

    def _page_file(self, component: str, task: int) -> Path | None:
        raise NotImplementedError


class MemoryStateProvider(_Provider):
    """States in memory: a topology that is started again with the same provider goes on, a process that died does not.

    >>> state = MemoryStateProvider().state("count", 0)
    >>> state.put("storm", 1); state.prepare_commit(0); state.commit(0); state.put("storm", 2); state.rollback()
    >>> state.get("storm")
    1
    """

    def __init__(self) -> None:
        super().__init__()
        self._records: dict[str, bytes] = {}

    def _store(self, name: str) -> StateStore:
        return MemoryStore(name)

    def _page_file(self, component: str, task: int) -> Path | None:
        return None

    def record(self, name: str) -> Any:
        """Return what was saved under `name`, None if nothing was."""
        blob = self._records.get(name)
        return None if blob is None else decode_value(blob, f"the record {name}")

    def save_record(self, name: str, data: Any) -> None:
        """Keep plain data under `name`."""
        self._records[name] = encode_value(data)

    def close(self) -> None:
        """Forget what is not committed or prepared; what is stays for the next start."""
        self.forget()


class SqliteStateProvider(_Provider):
    """States in one SQLite file of one topology; see StateFile for what it promises and when it refuses a file.

    Windows that do not fit into memory are in files beside it, `<path>.<bolt>-<task>.pages`: copy and delete them together.
    A context manager that closes the files. `verify=False` opens without reading all values once: the start is then O(tasks), and a
    damaged value is found when it is read, a lost one never.
    """

    def __init__(self, path: str | Path, topology: str, *, verify: bool = True) -> None:
        super().__init__()
        self.file = StateFile(path, topology, verify=verify)
        self._records = self.file.store("records")

    def __enter__(self) -> SqliteStateProvider:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _store(self, name: str) -> StateStore:
        return self.file.store(name)

    def _page_file(self, component: str, task: int) -> Path | None:
        return self.file.path.with_name(f"{self.file.path.name}.{component}-{task}.pages")

    def record(self, name: str) -> Any:
        """Return what was saved under `name`, None if nothing was. Raises CorruptStateError if it is damaged."""
        blob = self._records.read(encode_value(name))
        return None if blob is None else decode_value(blob, f"the record {name} in {self.file.path}")

    def save_record(self, name: str, data: Any) -> None:
        """Make plain data durable at once, in a transaction of its own."""
        self._records.put_now(encode_value(name), encode_value(data))

    def close(self) -> None:
        """Close the files, all of them whatever raises; what is not prepared is gone."""
        with ExitStack() as files:
            files.callback(self.file.close)
            for pages in self._pages.values():
                files.callback(pages.close)


def state_provider(kind: str | None, topology: str, path: str | Path | None = None) -> StateProvider:
    """Return the provider that `topology.state.provider` names: "memory", or "sqlite" with the path of its file; None is what the
    path says.
    """
    if kind not in (None, "memory", "sqlite"):
        raise ConfigError(f"topology.state.provider is 'memory' or 'sqlite', got {shown(kind)}; give one of them")
    if kind == "memory" and path is not None:
        raise ConfigError(
            f"states of {topology!r} are in memory by topology.state.provider, yet state_path is {shown(str(path))}; leave one of "
            "the two out: with a path alone they are in SQLite"
        )
    if kind != "sqlite" and path is None:
        return MemoryStateProvider()
    if path is None:
        raise ConfigError(
            f"states of {topology!r} in SQLite need a file that outlives the process, got none; give its path"
        )
    return SqliteStateProvider(path, topology)
