"""What a bolt is shown of a window: rows as they are, or with `columnar=` their columns."""

from __future__ import annotations

from windowing.core.windows import TupleWindow

__all__ = ["shown_to"]


def shown_to(form: str | None, window: TupleWindow) -> TupleWindow:
    """Return the window as a bolt with `columnar=form` is to see it. The runtimes keep rows, which they ack one by one; Arrow is
    loaded only for a bolt that asks for columns.
    """
    if form is None:
        return window
    from windowing.columnar import viewed

    return viewed(window, form)
