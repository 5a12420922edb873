"""PersistentWindowedBoltExecutor: windows on disk that survive the end of their process, by checkpoints.

    restore(None)        add, turn ...        m = prepare()      the driver makes m durable       committed()
    |--------------------------------------------|--------------------------|--------------------------|
    a first start                       pages of m are durable      a restart: restore(m)     older pages are deleted

Laws
- After `restore(m)` the machine is as it was when `prepare` returned m: windows, watermark, counts, pages. (Storm loses the
  watermark: after a restart it accepts tuples that were late before.)
- A prepare costs the pages that changed. A page that the last committed manifest names is deleted only after the next commit.
- With message ids, unique on their channel, a tuple that is sent again is skipped if the executor has processed it; without them it
  is in the windows twice.

A tuple is acked when a checkpoint that holds it is committed (by `StatefulBoltExecutor`), not when it expires, because a window on
disk outlives every message timeout. Hence the bolt's output is not anchored, and a window that fired after the last commit fires
again after a crash.

Source: Storm's `PersistentWindowedBoltExecutor`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from windowing.codec import decode_value, encode_text
from windowing.errors import (
    CheckpointError,
    ConfigError,
    CorruptStateError,
    DefinitionChangedError,
    SnapshotError,
    quote,
)
from windowing.schema.checks import DEFAULT_STREAM
from windowing.windows.config import WindowConfig
from windowing.windows.deduplicator import DEFAULT_CHANNEL, Deduplicator, block_names
from windowing.windows.events import Effect, values_at
from windowing.windows.executor import WindowedBoltExecutor
from windowing.windows.guard import NO_EFFECTS, one_for_each
from windowing.windows.key_state import restored_key
from windowing.windows.measures import plain_measure
from windowing.windows.paged_manager import PagedWindowManager
from windowing.windows.pages import PageStore

MANIFEST_FORMAT = 2
_WITH_BLOCKS = 3
"""The format of a manifest with blocks of message ids, which older versions refuse to read."""


class PersistentWindowedBoltExecutor(WindowedBoltExecutor):
    """A WindowedBoltExecutor with its tuples in `store`, for a bolt with `max_events_in_memory`.

    A channel is what ids are unique on: an upstream task and its stream, or a partition. `duplicates` counts skipped tuples.
    Call `restore` before every other method: with the manifest of the committed checkpoint, or None.
    """

    def __init__(
        self,
        config: WindowConfig,
        store: PageStore,
        streams: Sequence[str] = (DEFAULT_STREAM,),
        component: str = "bolt",
    ) -> None:
        if config.max_events_in_memory is None:
            raise ConfigError(
                f"bolt {component!r} keeps its windows in memory; declare max_events_in_memory=50_000 to have them on disk"
            )
        super().__init__(config, streams, component, pages=store)
        self._begun = False
        self._known = Deduplicator(f"bolt {component!r}")
        # The blocks of message ids by channel and number, as they are stored.
        self._blocks: dict[tuple[Any, int], str] = {}
        self._new = super().snapshot()

    @property
    def duplicates(self) -> int:
        """The number of repeated tuples that were skipped."""
        return self._known.duplicates

    @property
    def pages(self) -> PagedWindowManager:
        """The manager, with the figures of its cache."""
        assert isinstance(self.manager, PagedWindowManager)
        return self.manager

    # -- tuples ----------------------------------------------------------------------------------------------------------

    def add(
        self,
        payload: Any,
        timestamp: Any = None,
        *,
        stream: str = DEFAULT_STREAM,
        key: Any = None,
        source: Any = None,
        channel: Any = DEFAULT_CHANNEL,
        message_id: int | None = None,
    ) -> Iterator[Effect]:
        """Add one tuple; it has no effect if a tuple with its id was added before."""
        self._check_begun()
        if message_id is not None and not self._known.new_positions([message_id], [channel]):
            return NO_EFFECTS
        return super().add(payload, timestamp, stream=stream, key=key, source=source)

    def add_batch(
        self,
        payloads: Sequence[Any],
        timestamps: Sequence[Any] | None = None,
        *,
        stream: str | Sequence[str] = DEFAULT_STREAM,
        keys: Sequence[Any] | None = None,
        sources: Sequence[Any] | None = None,
        trusted: bool = False,
        tracked: bool = True,
        channels: Sequence[Any] | None = None,
        message_ids: Sequence[int] | None = None,
    ) -> Iterator[tuple[int, Effect]]:
        """Add tuples in arrival order; the result is exactly that of one `add` for each."""
        self._check_begun()
        one_for_each(payloads, message_ids=message_ids, channels=channels)
        kept = range(len(payloads)) if message_ids is None else self._known.new_positions(message_ids, channels)

        def new(column: Any) -> Any:
            same = column is None or isinstance(column, str) or len(kept) == len(payloads)
            return column if same else values_at(column, kept)

        effects = super().add_batch(
            new(payloads),
            new(timestamps),
            stream=new(stream),
            keys=new(keys),
            sources=new(sources),
            trusted=trusted,
            tracked=tracked,
        )
        return ((kept[at], effect) for at, effect in effects)

    # -- watermark advances ----------------------------------------------------------------------------------------------

    def turn(self) -> Iterator[Effect]:
        self._check_begun()
        return super().turn()

    def drain(self) -> Iterator[Effect]:
        self._check_begun()
        return super().drain()

    # -- checkpoints -----------------------------------------------------------------------------------------------------

    def prepare(self) -> dict[str, Any]:
        """Make all pages durable; return the manifest, plain data to be stored with the checkpoint.

        Call it between two entries only. Cost: the tuples and message ids added since the last prepare, six numbers for each page,
        and a copy of the stored text of all known ids.
        """
        self._check_begun()
        ids, blocks = self._known.stored()
        self._blocks.update({name: encode_text(block) for name, block in blocks.items()})
        names = block_names(ids)
        self._blocks = {name: text for name, text in self._blocks.items() if name in names}
        return {
            "format": _WITH_BLOCKS if self._blocks else MANIFEST_FORMAT,
            "machine": "PersistentWindowedBoltExecutor",
            "window": _definition(self.config),
            "executor": self.snapshot(),
            "message_ids": ids,
            **({"id_blocks": [[*name, block] for name, block in self._blocks.items()]} if self._blocks else {}),
            "duplicates": self.duplicates,
        }

    def committed(self) -> None:
        """The manifest of the last `prepare` is committed: delete the pages that only older manifests name."""
        self.pages.committed()

    def restore(self, data: dict[str, Any] | None) -> None:
        """Restore the executor from a manifest, or start anew with None; pages that the manifest does not name are deleted.

        Raises SnapshotError for data that is no manifest, DefinitionChangedError for one of another window (no page is deleted
        then), CorruptStateError if a page or a block of ids is missing.
        """
        self._begun, self._blocks = False, {}
        if data is None:
            super().restore(self._new)
            self._known.restore([])
        else:
            self._refuse_foreign(data)
            super().restore(data["executor"])
            self._blocks = {
                (restored_key(channel), number): block for channel, number, block in data.get("id_blocks", ())
            }
            self._known.restore(data["message_ids"], data["duplicates"], self._block_of)
        self._begun = True

    def _block_of(self, channel: Any, number: int) -> Any:
        what = f"bolt {self.component!r}: block {number} of the message ids of {quote(channel)}"
        block = self._blocks.get((channel, number))
        if block is None:
            raise CorruptStateError(f"{what} is missing; restore the checkpoint from a copy, nothing was reset")
        return decode_value(block.encode(), what)

    def _refuse_foreign(self, data: Any) -> None:
        if not isinstance(data, dict) or data.get("machine") != "PersistentWindowedBoltExecutor":
            raise SnapshotError(f"bolt {self.component!r}: a manifest of `prepare` was wanted, got {quote(data)}")
        if data.get("format") not in (MANIFEST_FORMAT, _WITH_BLOCKS):
            raise SnapshotError(
                f"bolt {self.component!r}: the manifest has format {quote(data.get('format'))}, this library reads "
                f"{MANIFEST_FORMAT} and {_WITH_BLOCKS}; use the version that wrote it"
            )
        now = _definition(self.config)
        changed = [name for name in now if data["window"].get(name) != now[name]]
        if changed:
            name = changed[0]
            raise DefinitionChangedError(
                f"bolt {self.component!r}: the checkpoint was written with {name}={quote(data['window'].get(name))}, now it is "
                f"{quote(now[name])}; give it its old value, or start with a new state"
            )

    def _check_begun(self) -> None:
        if not self._begun:
            raise CheckpointError(
                f"bolt {self.component!r} was given a tuple, a turn or a checkpoint before its state; call restore(manifest) "
                "first, restore(None) at a first start"
            )


def _definition(config: WindowConfig) -> dict[str, Any]:
    """Return the part of the definition on which the stored windows depend."""
    return {
        "length": plain_measure(config.length),
        "slide": plain_measure(config.slide),
        "event_time": config.event_time,
        "offset_ms": config.offset_ms,
        "lateness": config.lateness.value,
        "repeat": config.repeat,
        "key": None if config.key is None else list(config.key),
    }
