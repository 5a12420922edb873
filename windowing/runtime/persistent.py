"""PersistentWindow: the window of one task in one file, as a State that takes part in checkpoints.

    INITSTATE n    init(n)              the executor becomes that of checkpoint n, a new one for NEVER
    PREPARE n      prepare_commit(n)    pages and manifest are durable
    COMMIT n       commit(n)            the manifest counts; pages that it does not name are deleted
    ROLLBACK       rollback()           what was prepared is gone; init comes next

A driver performs the effects of `StatefulBoltExecutor` on it: Execute offers the tuple to `executor` and acks it at once, which
takes effect with the commit. Law: what `init(n)` gives is what `prepare_commit(n)` had.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from windowing.core.checks import DEFAULT_STREAM
from windowing.core.config import WindowConfig
from windowing.core.pages import CheckpointedPages
from windowing.core.persistent import PersistentWindowedBoltExecutor
from windowing.errors import CheckpointError
from windowing.runtime.pages import SqlitePages
from windowing.transactions.state import NEVER

__all__ = ["PersistentWindow"]


class PersistentWindow:
    """One task's window on disk; a context manager that closes the file.

    `path` is the file of this task alone, None for a temporary one; `pages` is given where somebody else opens and closes it.
    Raises CheckpointError and CorruptStateError as SqlitePages does, ConfigError for a bolt without `max_events_in_memory`.
    """

    def __init__(
        self,
        config: WindowConfig,
        path: str | Path | None = None,
        streams: Sequence[str] = (DEFAULT_STREAM,),
        component: str = "bolt",
        *,
        pages: CheckpointedPages | None = None,
    ) -> None:
        self._owned = pages is None
        self.pages: CheckpointedPages = SqlitePages(path) if pages is None else pages
        try:
            self.executor = PersistentWindowedBoltExecutor(config, self.pages, streams, component)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> PersistentWindow:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, unless the pages were given; what is not prepared is gone."""
        if self._owned:
            self.pages.close()

    @property
    def committed_txid(self) -> int:
        """The txid committed last, NEVER before the first."""
        found = self.pages.committed()
        return NEVER if found is None else found[0]

    def init(self, txid: int) -> None:
        """Make the executor that of checkpoint `txid`. Raises CheckpointError if another is the committed one."""
        found = self.pages.committed()
        held = NEVER if found is None else found[0]
        if held != txid:
            raise CheckpointError(
                f"{self.pages.name} holds checkpoint {held}, the coordinator goes on from {txid}; restore the files of all "
                "tasks and the checkpoint record from one copy, or, if this bolt is new in its topology, begin with new states; "
                "nothing was reset"
            )
        self.executor.restore(None if found is None else found[1])

    def prepare_commit(self, txid: int) -> None:
        """Make the window as it is durable under `txid`. Cost: the pages that changed, and six numbers a page."""
        self.pages.prepare(txid, self.executor.prepare())

    def commit(self, txid: int) -> None:
        """Make what was prepared under `txid` what a restart begins with; done twice it is done once."""
        self.pages.commit(txid)
        self.executor.committed()

    def rollback(self) -> None:
        """Forget what was prepared; the executor takes tuples again after `init`."""
        self.pages.rollback()
