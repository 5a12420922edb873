"""TridentTopology: streams over batches of spouts and requests of DRPC; `build` finds every mistake and returns the plan.

    topology = TridentTopology("word_count")
    counts = (
        topology.new_stream("sentences", spout)
        .each("sentence", split, "word string")
        .group_by("word")
        .persistent_aggregate(factory, None, Count(), "n long")
    )
    topology.new_drpc_stream("count_of").each("args", split, "word string").group_by("word").state_query(counts, ...)
    plan = topology.build()

Laws: nothing before `build` raises or looks at what it is given; `build` reports all mistakes together, changes nothing, and may be
called again. Source: Storm's `TridentTopology`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from windowing.core.storm_names import StormNames
from windowing.errors import ConfigError, shown
from windowing.topology.config_keys import Setting, without_effect
from windowing.topology.groupings import FieldsGrouping
from windowing.topology.schema import Schema
from windowing.topology.trident.fields import Names, names_of
from windowing.topology.trident.graph import Sketch, Source
from windowing.topology.trident.grouping import Join
from windowing.topology.trident.joining import JoinType
from windowing.topology.trident.operations import Merge, Operation
from windowing.topology.trident.plan import TridentPlan
from windowing.topology.trident.planner import built
from windowing.topology.trident.streams import Stream, TridentState, _spec

__all__ = ["TridentTopology", "planned"]


class TridentTopology(StormNames):
    """Collects a topology. `name` is what it is called in messages, drawings and checkpoints."""

    def __init__(self, name: str = "trident") -> None:
        self.name = name
        self._settings: list[Setting] = []
        self._sketch = Sketch()

    def configure(self, settings: Mapping[str, Any] | None = None, /, **typed: Any) -> TridentTopology:
        """Set the whole topology, by Storm's keys or typed names; a later setting wins."""
        self._settings += [*(settings or {}).items(), *typed.items()]
        return self

    def new_stream(self, name: str, spout: Any, output: str | Schema | None = None) -> Stream:
        """Begin a stream with a spout. `name` is under which the spout's progress is stored, and may not change.

        output: the fields, for a spout that does not declare them.
        """
        return Stream(self._sketch, self._sketch.add(Source(name, spout, output), ()))

    def new_drpc_stream(self, function: str) -> Stream:
        """Begin a stream with the requests of a function: a field `args`, a text. The last step that is added answers."""
        return Stream(self._sketch, self._sketch.add(Source(function, is_drpc=True), ()))

    def new_static_state(self, state: Any) -> TridentState:
        """Return a state for queries that no stream of this topology writes."""
        id, spec = self._sketch.state_id(), _spec(state)
        self._sketch.static_states[id] = spec
        return TridentState(self._sketch, id, spec)

    def merge(self, *streams: Stream | Sequence[Stream], names: Names | None = None) -> Stream:
        """Return one stream of the tuples of several, which have the same types; the names are those of the first."""
        return self._of(Merge(None if names is None else names_of(names)), _flat(streams), "merge")

    def join(
        self,
        streams: Sequence[Stream],
        keys: str | Sequence[Names],
        names: Names | None = None,
        kinds: JoinType | Sequence[JoinType] = JoinType.INNER,
    ) -> Stream:
        """Join streams by key, within a batch.

        keys: one name for all streams, or for each the field or fields of its key. names: of the fields that come out, first
        those of the key, then the others of each stream; None for what they are called there. kinds: for all, or for each.
        """
        sides = _flat(streams)
        for_all = isinstance(keys, str) or not isinstance(keys, Iterable)
        by = [names_of(keys)] * len(sides) if for_all else [names_of(key) for key in keys]
        how = list(kinds) if isinstance(kinds, Iterable) else [kinds] * len(sides)
        if len(by) != len(sides) or len(how) != len(sides):
            self._sketch.note(
                f"a join of {len(sides)} streams is given {len(by)} keys and {len(how)} kinds; give one of each for each stream"
            )
            return self._of(Merge(), (), "join")
        brought = [_partitioned(side, key) for side, key in zip(sides, by, strict=True)]
        return self._of(Join(tuple(by), None if names is None else names_of(names), tuple(how)), brought, "join")

    def build(self) -> TridentPlan:
        """Return the plan, or raise TopologyError with a sentence for every mistake. Cost: O(steps)."""
        plan = built(self.name, self._sketch, self._settings)
        idle = without_effect(plan.config.own)
        if idle is not None:
            warnings.warn(f"topology {self.name!r}: settings {idle}", stacklevel=2)
        return plan

    def _of(self, operation: Operation, streams: Sequence[Any], what: str) -> Stream:
        good = [stream for stream in streams if isinstance(stream, Stream)]
        for stream in streams:
            if not isinstance(stream, Stream):
                self._sketch.note(f"{what} is given {shown(stream)}; give streams of this topology")
            elif stream._sketch is not self._sketch:
                self._sketch.note(f"{what} is given {stream!r} of another topology; give streams of this one")
        if (len(streams) < 2 and what == "merge") or (not streams and what != "join"):
            self._sketch.note(f"{what} is given {len(streams)} streams; give two or more")
        complete = len(good) == len(streams) and all(stream._sketch is self._sketch for stream in good)
        return Stream(
            self._sketch, self._sketch.add(operation, tuple(stream._draft for stream in good) if complete else ())
        )


def planned(given: Any, runner: str) -> TridentPlan:
    """Return the plan of a TridentTopology, or one that is made already; ConfigError says what the runner is given here."""
    if isinstance(given, TridentTopology):
        return given.build()
    if isinstance(given, TridentPlan):
        return given
    raise ConfigError(
        f"{runner} runs a TridentTopology or its plan, got {shown(given)}; its name and settings are "
        "TridentTopology(name).configure({...})"
    )


def _flat(streams: Iterable[Any]) -> list[Any]:
    return [each for one in streams for each in (one if isinstance(one, list | tuple) else (one,))]


def _partitioned(side: Any, key: tuple[Any, ...]) -> Any:
    return side.repartition(FieldsGrouping(key)) if isinstance(side, Stream) else side
