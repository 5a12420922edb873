"""What a TridentCluster compares with its records before its first batch: windows, streams, the owners of the states.

    <topology>/master/coordinator     CoordinatorRecord                     the batches
                     /definition      the windows                           keep_definition
                     /life            of the topology on its states         owners_of
              /spouts/<stream>/...    metadata, ends of partitions          compare_streams

Law: records that do not fit are refused, or warned of, before the first batch; nothing of them is reset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

from windowing.errors import CheckpointError, DefinitionChangedError, StateConflictError, SupersededError, warn
from windowing.execution.compatibility import FORMAT, DefinitionLocation, compare, compare_rows, read, same_json
from windowing.schema.checks import is_whole
from windowing.trident.coordinator import CoordinatorRecord, StoredRecord
from windowing.trident.fence import Life, Owner, Progress, kept_by, owned
from windowing.trident.kinds import StateType
from windowing.trident.plan import TridentPlan
from windowing.trident.spouts import IOpaquePartitionedTridentSpout, IPartitionedTridentSpout, ITridentSpout
from windowing.trident.transactional_state import RecordStore, TransactionalState, part_of

_NAME = "definition"
_LIFE = "life"


def owners_of(plan: TridentPlan, state: TransactionalState) -> dict[str, Owner]:
    """Return the owner of each state in this run of the topology; it is stored before any batch.

    Raises SupersededError for a state that a newer run owns, CorruptStateError for a state that lacks batches of the records.
    """
    if not plan.written:
        return {}
    stored = state.read(_LIFE)
    record = StoredRecord(state).load()
    tries = record.tries.get(record.current)
    progress = Progress.of(f"topology {plan.name!r}", record.current - 1, None if tries is None else tries.attempt)
    life, owners = owned(Life.of(stored, f"{plan.name} {uuid4().hex}"), plan.written, progress, claims=False)
    if life.plain() != stored:
        try:
            state.write({_LIFE: life.plain()})
        except StateConflictError as problem:
            raise SupersededError(
                f"topology {plan.name!r} was started twice at the same time on the records {state.root}; run it once at a time"
            ) from problem
    for written in plan.written:
        if written.factory.kind is StateType.NON_TRANSACTIONAL and callable(getattr(written.factory, "mark", None)):
            written.factory.mark(written.partitions)
    return owners


def refuse_lost_record(plan: TridentPlan, state: TransactionalState) -> None:
    """Raise CheckpointError if the spouts have records of batches, and the coordinator has none, which is stored before them."""
    spouts = state.beside("spouts")
    if StoredRecord(state).load() == CoordinatorRecord() and any(
        spouts.names(f"{name}/coordinator/meta") for name in spouts.names()
    ):
        raise CheckpointError(
            f"the records of topology {plan.name!r} have batches of its spouts and lack {state.root}/coordinator: it was lost; put "
            "records and states back from one copy; nothing was reset"
        )


def keep_definition(plan: TridentPlan, state: TransactionalState, record: CoordinatorRecord) -> None:
    """Store the definition of the windows. Raises DefinitionChangedError if batches were begun with other windows, CheckpointError
    if a half-done batch would have others although a state keeps it, and CorruptStateError if the stored value is not a definition.
    """
    stored, wanted = state.read(_NAME) or {}, {"format": FORMAT, **plan.windows()}
    if isinstance(stored, dict) and "format" not in stored:  # written by 0.2.0
        stored = {"format": FORMAT, "windows": stored}
    if record != CoordinatorRecord():
        what = f"the windows kept for topology {plan.name!r}"
        place = DefinitionLocation(
            what,
            f"the definition of {what}",
            "restore the old topology, or begin with new records and new states; nothing was reset",
            "restore the records from a copy, or use the version that wrote them; nothing was reset",
            record=True,
        )
        found = read(stored, place)
        compare(found, wanted, place)
        compare_rows(found, wanted, place, record.current, kept_by(plan.written, record.current))
    if not same_json(stored, wanted):
        state.write({_NAME: wanted})


_SOURCE, _OTHER = "a source", "another kind of spout"
_POSITIONED = (IPartitionedTridentSpout, IOpaquePartitionedTridentSpout, ITridentSpout)


def compare_streams(plan: TridentPlan, state: TransactionalState, sources: Mapping[str, Any]) -> None:
    """Compare the streams with those that the records know, and store the kinds of their spouts; sources: those that are read in
    place of their spouts.

    Warns if a stream begins anew, and the records have the position of one that is gone. Raises DefinitionChangedError for a stream
    whose position another kind of spout has stored.
    """
    spouts = state.beside("spouts")
    known = {part for part in spouts.names() if spouts.names(part) != ["kind"]}
    streams = {part_of(name): name for name in plan.streams}
    new, kinds = [], {}
    for part, name in streams.items():
        spout, source = plan.streams[name].source.spout, sources.get(name)
        kind = _SOURCE if source is not None else _kind_of(spout)
        stored, (txid, metadata) = spouts.read(f"{part}/kind"), _last_metadata(spouts, part)
        if kind is not None and kind != stored:
            kinds[f"{part}/kind"] = kind
        if part not in known:
            # A queue and a consumer group know their position, a batch spout counts txids.
            if kind not in (None, _SOURCE) or getattr(source, "_progress_key", 0) is None:
                new.append(name)
            continue
        before = stored or _kind_before(kind, spouts, part, metadata)
        if txid and kind is not None and kind != before:
            raise DefinitionChangedError(
                f"topology {plan.name!r}: stream {name!r} is read from {kind}, and its position in the records, up to txid {txid}, "
                f"is that of {before}; give it that one again, or give the stream another name to read it from the beginning; "
                "nothing was reset"
            )
    gone = sorted(
        part
        for part in known - streams.keys()
        if spouts.names(f"{part}/emitter/partitions") or _last_metadata(spouts, part)[1] is not None
    )
    if gone and new:
        warn(
            f"topology {plan.name!r}: stream {', '.join(map(repr, sorted(new)))} is read from its beginning, and the records have "
            f"the progress of {', '.join(map(repr, gone))}, which is not there any more; if it was renamed its tuples count twice: "
            "give it its old name"
        )
    if kinds:
        spouts.write(kinds)


def _kind_name(kind: type) -> str:
    return f"an {kind.__name__}"


def _kind_of(spout: Any) -> str | None:
    """Return the kind of a spout whose position is in the records, as errors call it; None for the other kinds."""
    return next((_kind_name(kind) for kind in _POSITIONED if isinstance(spout, kind)), None)


def _kind_before(kind: str | None, spouts: TransactionalState, part: str, metadata: Any) -> str | None:
    """Return the kind of spout that has stored a position, by its form; `kind` if it may be that. 0.2.0 stored no kind."""
    if isinstance(metadata, dict) and metadata.keys() == {"start", "end"}:
        return kind if kind == _kind_name(ITridentSpout) else _SOURCE
    if kind == _kind_name(IOpaquePartitionedTridentSpout) and not all(map(_is_of_attempt, _ends(spouts, part))):
        return _kind_name(IPartitionedTridentSpout)
    return _OTHER if kind == _SOURCE else kind


def _ends(spouts: TransactionalState, part: str) -> Iterator[Any]:
    """Yield what the tasks of a partitioned spout have stored for each partition and txid."""
    folder = f"{part}/emitter/partitions"
    for partition in spouts.names(folder):
        yield from spouts.read_all(f"{folder}/{partition}").values()


def _is_of_attempt(end: Any) -> bool:
    """Whether the end of a partition has the form that opaque spouts store: (attempt, end)."""
    return isinstance(end, tuple | list) and len(end) == 2 and is_whole(end[0], 0)


def _last_metadata(spouts: TransactionalState, part: str) -> tuple[int, Any]:
    """Return the last txid of a stream in the records, and its metadata; 0 and None if there is none."""
    txid = max((int(name) for name in spouts.names(f"{part}/coordinator/meta") if name.isdigit()), default=0)
    return txid, spouts.read(f"{part}/coordinator/meta/{txid}") if txid else None


def coordinator_state(plan: TridentPlan, store: RecordStore) -> TransactionalState:
    """Return the records of a topology's coordinator."""
    return root_of(plan, store).at("master")


def root_of(plan: TridentPlan, store: RecordStore) -> TransactionalState:
    """Return all records of a topology."""
    return TransactionalState(store, part_of(plan.name))
