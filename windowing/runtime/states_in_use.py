"""StatesInUse: the states of a topology while one cluster uses them.

    made    StatesInUse(...)   given, or made as path and settings say; compared with the topology (definition.py)
    begun   begin()            what a cluster before left half changed is forgotten; the definition is durable
    over    release()          closed if made here; what was given stays open, for whoever gave it

Law: a store that cannot be used is let go of at once, so that the next start finds it free.
"""

from __future__ import annotations

from pathlib import Path

from windowing.errors import ConfigError, shown
from windowing.runtime.definition import compare_definition, keep_definition
from windowing.runtime.states import state_provider
from windowing.topology.plan import Topology
from windowing.transactions.state import StateProvider

__all__ = ["StatesInUse"]


class StatesInUse:
    """`provider` is None for a topology that keeps nothing.

    Raises ConfigError for a provider or a path that nothing would be kept in, or for both; DefinitionChangedError for states of
    another definition; what the store raises for a file that it cannot use.
    """

    def __init__(self, topology: Topology, given: StateProvider | None, path: str | Path | None) -> None:
        _refuse_contradictions(topology, given, path)
        self._topology = topology
        self._made = given is None
        self.provider = given
        if not topology.stateful:
            return
        if given is None:
            self.provider = state_provider(topology.config.state_provider, topology.name, path)
        assert self.provider is not None
        try:
            compare_definition(topology, self.provider)
        except BaseException:
            self.release()
            raise

    def begin(self) -> None:
        """Make the states those of the last checkpoint, and their definition that of this topology."""
        if self.provider is not None:
            self.provider.forget()
            keep_definition(self._topology, self.provider)

    def release(self) -> None:
        """Let go of the states; what is not prepared is gone."""
        if self.provider is None:
            return
        if self._made:
            self.provider.close()
        else:
            self.provider.forget()


def _refuse_contradictions(topology: Topology, given: StateProvider | None, path: str | Path | None) -> None:
    if given is not None and path is not None:
        raise ConfigError(
            f"topology {topology.name!r} was given both states= and state_path={shown(str(path))}; leave one of the two out"
        )
    if not topology.stateful and (given is not None or path is not None):
        what = "states=" if path is None else f"state_path={shown(str(path))}"
        raise ConfigError(
            f"topology {topology.name!r} keeps nothing in {what}: no bolt has init_state or max_events_in_memory=; leave it out, "
            "or give a bolt a state"
        )
