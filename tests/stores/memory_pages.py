"""MemoryPages: the pages of a persistent window in memory."""

from __future__ import annotations

from collections.abc import Collection

from windowing.errors import CheckpointError, CorruptStateError
from windowing.stores.pages import decode_page, encode_page
from windowing.windows.pages import PageRows


class MemoryPages:
    """Pages are bytes, as on disk."""

    def __init__(self) -> None:
        self._bodies: dict[int, bytes] = {}

    def write(self, page_id: int, rows: PageRows) -> None:
        if page_id in self._bodies:
            raise CheckpointError(f"page {page_id} is already written, and pages never change")
        self._bodies[page_id] = encode_page(page_id, rows)

    def read(self, page_id: int) -> PageRows:
        body = self._bodies.get(page_id)
        if body is None:
            raise CorruptStateError(f"page {page_id} is missing; nothing was reset")
        return decode_page(page_id, body, f"page {page_id}")

    def drop(self, page_ids: Collection[int]) -> None:
        for page_id in page_ids:
            self._bodies.pop(page_id, None)

    def flush(self) -> None:
        """Memory is as durable as it gets."""

    def ids(self) -> list[int]:
        return list(self._bodies)
