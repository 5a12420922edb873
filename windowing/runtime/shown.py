"""What a bolt is shown of a window: rows as they are, or with `columnar=` columns.

The runtimes keep rows, which they ack one by one; Arrow is loaded only for a bolt that asks for columns.
"""

from __future__ import annotations

from windowing.core.executor import WindowedBoltExecutor
from windowing.core.windows import TupleWindow

__all__ = ["shown_to", "with_tables"]


def shown_to(form: str | None, window: TupleWindow) -> TupleWindow:
    """Return the window as a bolt with `columnar=form` is to see it."""
    if form is None:
        return window
    from windowing.columnar import viewed

    return viewed(window, form)


def with_tables(executor: WindowedBoltExecutor) -> WindowedBoltExecutor:
    """Give an executor whose bolt has both `aggregate=` and `columnar=` the machine that hands out one table for all keys."""
    config = executor.config
    if config.columnar is not None and config.aggregate is not None:
        from windowing.columnar import over_columns

        return over_columns(executor)
    return executor
