"""Chain: a topology run stage by stage as on Spark, in one process and without a JVM, for the fast tests."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from windowing.acking.batches import RootPartial
from windowing.columnar.rows import decode_table
from windowing.execution.plan import Section
from windowing.local.clock import VirtualClock
from windowing.local.cluster import LocalCluster
from windowing.spark.acks import partials_of
from windowing.spark.context import execution_context
from windowing.spark.exchange import FIRST_TASK, TASK_AND_CLOCK, ExchangeRow, record_batches, rows_of
from windowing.spark.operator import Stored
from windowing.spark.output import frame_of
from windowing.spark.stages import SpoutStage, StageTaskTurn
from windowing.spark.submit import output_streams
from windowing.spark.unreadable import python_values
from windowing.topology.plan import Topology

Rows = Sequence[tuple[Any, ...]]
Outputs = list[dict[str, list[tuple[Any, ...]]]]
"""For each batch the rows of each non-empty stream, by sink name."""


class Chain:
    """Batches through the stages of `submit`.

    The rows of a batch enter every stage in an order shuffled by `seed`, because a shuffle guarantees none. acks: each spout takes
    acks, and `partials` are the reports of the last batch on roots.
    """

    def __init__(
        self,
        topology: Topology,
        partitions: int = 1,
        seed: int = 0,
        letters: bool = True,
        acks: bool = False,
        batches_before: int = 0,
    ) -> None:
        self.topology = topology
        self.names = output_streams(topology)
        kept = [on_wire for name, (on_wire, _) in self.names.items() if letters or not name.endswith(".dead_letters")]
        roots = {(spout.id, "default"): number for number, spout in enumerate(topology.spouts)} if acks else {}
        self.wiring = execution_context(topology, frozenset(kept), roots, batches_before)
        self.partials: tuple[RootPartial, ...] = ()
        self.invalid: dict[str, int] = {}
        self.partitions = partitions
        self.chance = random.Random(seed)
        self.metadata: dict[int, bytes] = {}
        self.chunks: dict[int, dict[bytes, bytes]] = defaultdict(dict)
        self.values: dict[int, dict[bytes, bytes]] = defaultdict(dict)
        self.turns = [StageTaskTurn(self.wiring, place) for place in self.wiring.plan.tasks]
        self.channel: Any = None
        self.batch = 0

    def restarted(self, topology: Topology) -> Chain:
        """Return a chain with the stored states of this one: a restart with another definition."""
        following = Chain(topology)
        following.metadata, following.chunks, following.values = self.metadata, self.chunks, self.values
        return following

    def run(self, rows: Mapping[str, Rows], drain: bool = False) -> dict[str, list[tuple[Any, ...]]]:
        """Run one batch; return the output by sink name."""
        wire = self._emitted(rows)
        if drain:
            wire += [
                ExchangeRow(place.number, "drain", "", 0, 0, self.batch, None, 0, None)
                for place in self.wiring.plan.tasks
            ]
        for level in self.wiring.plan.depths(Section.STREAM):
            wire = self._level(level, wire)
        self.partials = partials_of(row.data or b"" for row in wire if row.kind == "ack")
        self.batch += 1
        return self._out(wire)

    def _emitted(self, rows: Mapping[str, Rows]) -> list[ExchangeRow]:
        wire: list[ExchangeRow] = []
        first = 0
        for spout in self.topology.spouts:
            given = list(rows.get(spout.id, ()))
            stage = SpoutStage(SimpleNamespace(value=self.wiring), spout.id, "default", channel=self.channel)
            schema = self.wiring.schemas[f"{spout.id}:default"]
            size = -(-len(given) // self.partitions) or 1
            for partition in range(self.partitions):
                part = given[partition * size : (partition + 1) * size]
                columns = list(zip(*part, strict=True)) or [()] * len(schema)
                arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
                batch = pa.RecordBatch.from_arrays(
                    [*arrays, pa.repeat(pa.scalar(self.batch, pa.int64()), len(part))],
                    names=[*(f"c{number}" for number in range(len(schema))), TASK_AND_CLOCK],
                )
                for sent in stage.pack(iter([batch]), first + partition, self.batch):
                    wire += rows_of([sent.to_pandas()])
            first += self.partitions
        return wire

    def _level(self, level: int, wire: list[ExchangeRow]) -> list[ExchangeRow]:
        mine = [place.number for place in self.wiring.plan.tasks_at(level)]
        sent = [row for row in wire if row.target not in mine]
        for number in mine:
            own = [row for row in wire if row.target == number]
            self.chance.shuffle(own)
            values = self.values[number]
            stored = Stored(self.metadata.get(number), self.chunks[number].get, values.get, values.items)
            result = self.turns[number].run(own, stored, self.batch)
            for kept, puts, drops in (
                (self.chunks[number], result.puts, result.drops),
                (self.values[number], result.value_puts, result.value_drops),
            ):
                for key in drops:
                    del kept[key]
                kept.update(puts)
            if self.channel is not None:
                self.channel.send(self.batch, FIRST_TASK + number, self.batch, result.done)
            if result.metadata is not None:
                self.metadata[number] = result.metadata
            sent += rows_of(map(frame_of, record_batches(result.output)))
        return sent

    def _out(self, wire: list[ExchangeRow]) -> dict[str, list[tuple[Any, ...]]]:
        found: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        self.invalid = {row.stream: row.value for row in wire if row.kind == "metric" and row.source == "invalid"}
        by_wire = {on_wire: name for name, (on_wire, _) in self.names.items()}
        for row in wire:
            if row.kind == "out":
                table = decode_table(row.data or b"")
                assert table.num_rows == row.value
                columns = [python_values(table.column(name), name) for name in table.column_names]
                found[by_wire[row.stream]] += list(zip(*columns, strict=True))
        return dict(found)


def chained(topology: Topology, batches: Mapping[str, Sequence[Rows]], partitions: int = 1, seed: int = 0) -> Outputs:
    """Return the output of each batch, and of the drain after them."""
    chain = Chain(topology, partitions, seed)
    count = max(map(len, batches.values()))
    outputs = [chain.run({name: rows[number] for name, rows in batches.items()}) for number in range(count)]
    return [*outputs, chain.run({}, drain=True)]


def clustered(topology: Topology, batches: Mapping[str, Sequence[Rows]], drain: bool = True) -> Outputs:
    """Return the output of LocalCluster for each batch, and for the drain."""
    names = [name for name in output_streams(topology) if not name.endswith(".dead_letters")]
    outputs: Outputs = []
    with LocalCluster(topology, batches=batches, clock=VirtualClock(), outputs=names) as cluster:
        seen = dict.fromkeys(names, 0)

        def collect() -> None:
            found = {name: cluster.result.outputs[name][seen[name] :] for name in names}
            outputs.append({name: rows for name, rows in found.items() if rows})
            seen.update({name: len(cluster.result.outputs[name]) for name in names})

        for number in range(max(map(len, batches.values()))):
            cluster.run_batch({name: rows[number] for name, rows in batches.items()})
            collect()
        if drain:
            cluster.drain()
            collect()
    return outputs
