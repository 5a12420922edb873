"""Batches that a run is handed: lists of rows, each of which fits its spout.

run_local        [[row, row], [row]]
run_topology     {"spout": [[row, row], [row]]}        run_trident: the same, by stream

Law: what is no list of rows is refused before anything of it arrives; so is a batch with a row that does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from windowing.core.checks import DEFAULT_STREAM
from windowing.errors import ConfigError, shown
from windowing.topology.rows import RowError, no_rows, row_of
from windowing.topology.schema import Schema
from windowing.topology.tuples import Tuple

__all__ = ["batches_by_name", "is_list", "listed", "rows_in"]


def is_list(rows: Any) -> bool:
    """Whether it is a list of rows: not a row (a text, a mapping, a namedtuple), not what gives no rows (`no_rows`)."""
    several = isinstance(rows, Iterable) and not isinstance(
        rows, str | bytes | bytearray | memoryview | Mapping | Tuple
    )
    return several and not hasattr(rows, "_fields") and no_rows(rows) is None


def listed(rows: Any, wanted: str) -> Iterable[Any]:
    """Return `rows` as it is, or raise ConfigError if it is no list of rows."""
    if not is_list(rows):
        given = no_rows(rows) or f"{shown(rows)}; write [row, row], and [[row, row]] for a list of batches"
        raise ConfigError(f"{wanted}, got {given}")
    found: Iterable[Any] = rows
    return found


def batches_by_name(batches: Any, whose: str) -> dict[str, list[Iterable[Any]]]:
    """Return what a run is given as `batches=`, by the names of those whose batches they are.

    >>> batches_by_name({"sentences": [["the cow"], ("jumped", "over")]}, "InputSpout")
    {'sentences': [['the cow'], ('jumped', 'over')]}
    >>> batches_by_name({"sentences": ["the cow"]}, "InputSpout")
    Traceback (most recent call last):
    windowing.errors.ConfigError: [CONFIG] InputSpout 'sentences' takes a list of batches, each a list of rows, got 'the cow'; \
write [row, row], and [[row, row]] for a list of batches
    """
    if not isinstance(batches, Mapping | None):
        raise ConfigError(
            f"batches= is a mapping by the name of each {whose}, got {shown(batches)}; write {{'name': [[row, row]]}}"
        )
    found = {}
    for name, some in (batches or {}).items():
        wanted = f"{whose} {shown(name)} takes a list of batches, each a list of rows"
        found[name] = [listed(batch, wanted) for batch in listed(some, wanted)]
    return found


def rows_in(batch: Sequence[Any], schema: Schema, where: str) -> list[tuple[Any, ...]]:
    """Return the rows of a batch as tuples of the schema, or raise ConfigError for the first that does not fit.

    >>> rows_in([("a", 1), {"n": 2, "word": "b"}], Schema.parse("word string, n int"), "InputSpout 'words', batch 0")
    [('a', 1), ('b', 2)]
    """
    rows: list[tuple[Any, ...]] = []
    try:
        for row in batch:
            rows.append(row_of(row, schema, DEFAULT_STREAM))
    except RowError as problem:
        flat = "; the batch is such a row itself: write [[row, row]]" if _is_row(batch, schema) else ""
        raise ConfigError(f"{where}, row {len(rows)} (counted from 0): {problem.args[0]}{flat}") from None
    return rows


def _is_row(batch: Sequence[Any], schema: Schema) -> bool:
    try:
        row_of(tuple(batch), schema, DEFAULT_STREAM)
    except RowError:
        return False
    return len(schema) > 1
